"""The HTTP APIs: what a request may hold and what a reply looks like, one folder for each API."""

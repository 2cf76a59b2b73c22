"""The HTTP APIs: request fields and reply formats, one folder for each API."""

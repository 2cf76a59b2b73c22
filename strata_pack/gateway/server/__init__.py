"""The ASGI application, its middleware, its metrics endpoint and its live page."""

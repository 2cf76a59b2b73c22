"""The OpenAI-compatible front before a llama.cpp server: messages in, a prompt out, and no generated call gets lost.

``create_app`` makes the ASGI application, ``serve`` runs it. Needs the extra ``serve``; nothing of it is imported here.
"""

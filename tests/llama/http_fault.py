"""An HTTP server that answers wrongly on demand: what a real server cannot be made to do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler, int], None]
"""Answers one request; the number counts the requests to this server, from 1."""


@contextmanager
def faulty_server(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a server whose every request is answered by ``answer``, and the list of paths asked so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        asked_body: object = None

        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.asked_body = json.loads(sent) if sent else None
            asked.append(self.path)
            answer(self, len(asked))

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def body(text: bytes, status: int = 200, *, length: int | None = None) -> Answer:
    """Answer with ``text``; ``length`` lies about its size."""

    def answer(handler: BaseHTTPRequestHandler, _number: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text) if length is None else length))
        handler.end_headers()
        handler.wfile.write(text)

    return answer


def drip(handler: BaseHTTPRequestHandler, _number: int) -> None:
    """Send one space every 50 ms, for ever: JSON that never ends."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


def hang_up(handler: BaseHTTPRequestHandler, _number: int) -> None:
    """Close the connection without a word."""
    handler.close_connection = True


def hang_up_once(then: Answer) -> Answer:
    """Close the first connection without a word; answer the others with ``then``."""

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        (hang_up if number == 1 else then)(handler, number)

    return answer

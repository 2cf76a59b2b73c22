"""Images at addresses: https alone, public addresses alone, bounded in size, time and redirects."""

from __future__ import annotations

import asyncio
import gc
import http.server
import ipaddress
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_pack.gateway.fetching import Fetcher, NotFetched, is_public
from tests.gateway.images import encoded
from tests.gateway.server.running import certificate

PNG = encoded()


ASKED: list[tuple[str, str]] = []


class Site(http.server.BaseHTTPRequestHandler):
    """What is at each path: an image, or a way to cheat."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        ASKED.append((self.headers["Host"], self.path))
        status, headers, body = PATHS.get(self.path, lambda: (404, {}, b""))()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def redirect(target: str, status: int = 302) -> Callable[[], tuple[int, dict[str, str], bytes]]:
    return lambda: (status, {"Location": target}, b"")


PATHS: dict[str, Callable[[], tuple[int, dict[str, str], bytes]]] = {
    "/a.png": lambda: (200, {}, PNG),
    "/once": redirect("/a.png"),
    "/303": redirect("a.png", 303),
    "/loop": redirect("/loop"),
    "/down": redirect("http://127.0.0.1/a.png"),
    "/file": redirect("file:///etc/passwd"),
    "/inside": redirect("https://127.0.0.2/a.png"),
    "/large": lambda: (200, {}, bytes(2000)),
    "/lies": lambda: (200, {"Content-Length": "9999999999"}, bytes(2000)),
    "/packed": lambda: (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"),
    "/nowhere": redirect(""),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    cert, key = certificate(tmp_path_factory.mktemp("site"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}", cert
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The HTTP client leaves a connection whose handshake failed to the garbage collector, which warns of it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def fetch(url: str, cert: Path, *, max_bytes: int = 1000, **options: Any) -> bytes:
    context = ssl.create_default_context(cafile=str(cert))
    allowed = options.pop("allowed", lambda address: address == "127.0.0.1")
    return asyncio.run(Fetcher(max_bytes, allowed=allowed, context=context, **options).fetch(url))


@pytest.mark.parametrize("path", ["/a.png", "/once", "/303"])
def test_an_image_is_fetched(path: str, site: tuple[str, Path]) -> None:
    assert fetch(site[0] + path, site[1]) == PNG


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/none", "status 404"),
        ("/loop", "more than 3 redirects"),
        ("/down", "not at an https address"),
        ("/file", "not at an https address"),
        ("/inside", "address that is not public"),
        ("/large", "more than 1,000 bytes"),
        ("/lies", "more than 1,000 bytes"),
        ("/packed", "compressed"),
    ],
)
def test_what_cheats_is_not_fetched(path: str, words: str, site: tuple[str, Path]) -> None:
    with pytest.raises(NotFetched, match=words):
        fetch(site[0] + path, site[1])


def test_a_private_address_is_never_asked(site: tuple[str, Path]) -> None:
    ASKED.clear()
    with pytest.raises(NotFetched, match="address that is not public"):
        fetch(f"{site[0]}/a.png", site[1], allowed=is_public)
    assert ASKED == []


def test_a_name_is_private_if_one_of_its_addresses_is(site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    async def both(*_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("93.184.215.14", "10.0.0.1")]

    async def ask() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both, raising=False)
        await Fetcher(1000, context=ssl.create_default_context(cafile=str(site[1]))).fetch("https://example.org/a.png")

    with pytest.raises(NotFetched, match="address that is not public"):
        asyncio.run(ask())


def test_the_checked_address_is_the_one_that_is_asked_and_the_name_is_whose_certificate_counts(
    site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(site[0].rpartition(":")[2])
    looked_up: list[str] = []

    async def here(host: str, *_: Any, **__: Any) -> Any:
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def ask() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", here, raising=False)
        context = ssl.create_default_context(cafile=str(site[1]))
        await Fetcher(1000, allowed=lambda _: True, context=context).fetch(f"https://images.example:{port}/a.png")

    ASKED.clear()
    with pytest.raises(NotFetched, match="cannot be fetched"):  # the certificate is that of 127.0.0.1
        asyncio.run(ask())
    assert looked_up[0] == "images.example"
    assert ASKED == []


def test_a_certificate_that_nobody_signed_is_not_believed(site: tuple[str, Path]) -> None:
    with pytest.raises(NotFetched, match="cannot be fetched"):
        asyncio.run(Fetcher(1000, allowed=lambda _: True).fetch(f"{site[0]}/a.png"))


def test_a_server_that_says_nothing_is_left(site: tuple[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(NotFetched):
            fetch(url, site[1], seconds=0.3)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "ftp://127.0.0.1/a.png",
        "file:///etc/passwd",
        "https://",
        "https:///a.png",
        "https://user:secret@127.0.0.1/a.png",
        "https://[::1/a.png",
        "https://a b/",
        "https://no-such-name.invalid/",
        "https://" + "a" * 70 + ".example/",
        "https://127.0.0.1/" + "a" * 9000,
        "https://127.0.0.1:99999/",
        "//127.0.0.1/",
        "gopher:x",
    ],
)
def test_an_odd_address_is_not_fetched(url: str, site: tuple[str, Path]) -> None:
    with pytest.raises(NotFetched):
        fetch(url, site[1])


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    ],
)
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert ipaddress.ip_address(address)
    assert is_public(address)

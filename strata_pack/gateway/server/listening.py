"""The gateway's listening socket, URL and TLS certificate."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput, EnvironmentFailure


@dataclass(frozen=True)
class Tls:
    """The files of a certificate (with its chain) and of its key, both PEM."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise ``BadInput`` unless certificate and key are usable."""
        for file in (self.certificate, self.key):
            if not file.is_file():
                raise BadInput("no such file", where=file)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise BadInput(
                f"the certificate and the key {self.key} cannot be used ({error})",
                where=self.certificate,
                remedy="give PEM files that belong together; the key must have no password",
            ) from error


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ``EnvironmentFailure`` if the address is taken or not on this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot listen ({error.strerror})", where=f"{host}:{port}", remedy="choose another --port"
        ) from error


def url_of(sock: socket.socket, *, secure: bool = False) -> str:
    """Return the URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

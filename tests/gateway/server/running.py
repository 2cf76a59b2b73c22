"""A running ``strata-pack serve`` with its log, and a certificate for it."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.server.served import COMMAND, announced

SECRET_TEXT = "squeezed tea"


class Running:
    """``strata-pack serve`` before a replaying upstream; ``errors`` are the lines on stderr so far."""

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "serve", *options, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.errors: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def facts(self) -> dict[str, Any]:
        return announced(self.process)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.errors.append(line)
                self._said.notify_all()

    def wait_for(self, words: str, seconds: float = 30.0) -> str:
        with self._said:
            found = self._said.wait_for(lambda: any(words in line for line in self.errors), seconds)
            assert found, "".join(self.errors)
            return next(line for line in self.errors if words in line)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._reader.join(30)
        self.process.stdout.close()
        self.process.stderr.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    cert_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    return cert_path, key_path

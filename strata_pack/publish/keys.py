"""Signing keys: ECDSA pairs as PEM files (new ones on P-256), and their fingerprints.

A fingerprint is the SHA-256 of the public key as PEM, which OpenSSF Model Signing writes as ``hint``.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strata_pack.errors import BadInput, WrongUse
from strata_pack.extras import need
from strata_pack.files import read_bytes, sha256_bytes, write_atomic
from strata_pack.outputs import check_file_output
from strata_pack.progress import Progress

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDSA,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

KEY_LIMIT = 1 << 20
"""Bytes of a key file that are read."""

HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Hash algorithm of each curve. Source: the sigstore protobuf specifications, ``PublicKeyDetails``."""

PASSWORD = "STRATA_KEY_PASSWORD"


@dataclass(frozen=True)
class KeyPair:
    """The files of a new pair, and the key's fingerprint."""

    private: Path
    public: Path
    fingerprint: str


def make_keys(out: Path) -> KeyPair:
    """Write a new pair: the private key to ``out``, readable by its owner only, the public one next to it as ``.pub``.

    The private key is encrypted if ``STRATA_KEY_PASSWORD`` is set. Raises ``WrongUse`` if one of the
    files exists: a lost key cannot be made again.
    """
    need("cryptography", "sign", "making keys")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if out.is_dir() or not out.name:
        raise WrongUse("is a folder, not a file to write", where=out, remedy="add a file name, as key.pem")
    public = out.with_suffix(".pub")
    if public == out:
        raise WrongUse("is the name for the public key", where=out, remedy="name the private one, as key.pem")
    for path in (out, public):
        check_file_output(path, force=False, remedy="choose another name: a lost key cannot be made again")
    key = ec.generate_private_key(ec.SECP256R1())
    password = _password()
    private_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption(),
    )
    write_atomic(out, private_pem, 0o600)
    write_atomic(public, public_pem(key.public_key()))
    return KeyPair(out, public, fingerprint(key.public_key()))


def read_private_key(path: Path, progress: Progress | None = None) -> EllipticCurvePrivateKey:
    """Read a private key. Raises ``BadInput`` if it is none, ``WrongUse`` if its password is missing.

    A key that other users can read is noted in ``progress``.
    """
    need("cryptography", "sign", "signing")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data, password = read_bytes(path, KEY_LIMIT), _password()
    if b"PRIVATE KEY" not in data and b"PUBLIC KEY" in data:
        raise BadInput("is a public key", where=path, remedy="sign with the private one of the pair")
    try:
        if b"ENCRYPTED" not in data:
            password = None
        elif password is None:
            raise WrongUse("is protected by a password", where=path, remedy=f"set {PASSWORD}")
        key = serialization.load_pem_private_key(data, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        remedy = f"check {PASSWORD}" if password else "make one with `strata-pack keygen --out key.pem`"
        raise BadInput("is no private key that can be read (PEM)", where=path, remedy=remedy) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in HASHES:
        raise BadInput("is not an ECDSA key on P-256, P-384 or P-521", where=path)
    if progress is not None and password is None and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        progress.note(f"{path}: others on this machine can read the private key; `chmod 600` keeps it to you")
    return key


def read_public_key(path: Path) -> EllipticCurvePublicKey:
    """Read a public key. Raises ``BadInput`` for anything else."""
    need("cryptography", "sign", "checking a signature")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = read_bytes(path, KEY_LIMIT)
    if b"PRIVATE KEY" in data:
        raise BadInput("is a private key", where=path, remedy="check with the public one of the pair (.pub)")
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput("is no public key that can be read (PEM)", where=path) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in HASHES:
        raise BadInput("is not an ECDSA key on P-256, P-384 or P-521", where=path)
    return key


def public_pem(key: EllipticCurvePublicKey) -> bytes:
    """Return the key as PEM (SubjectPublicKeyInfo)."""
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: EllipticCurvePublicKey) -> str:
    """Return the key's fingerprint: the SHA-256 of its PEM, as lower-case hex."""
    return sha256_bytes(public_pem(key))


def algorithm(key: EllipticCurvePublicKey | EllipticCurvePrivateKey) -> ECDSA:
    """Return the signature algorithm of ``key``: ECDSA with the hash of its curve."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(getattr(hashes, HASHES[key.curve.name])())


def _password() -> bytes | None:
    return os.environ.get("STRATA_KEY_PASSWORD", "").encode() or None

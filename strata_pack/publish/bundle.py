"""The signature file: an in-toto statement in a DSSE envelope in a Sigstore bundle, signed with a key, offline.

Sources: OpenSSF Model Signing v1.0 (its predicate), in-toto Attestation Framework (Statement v1), DSSE v1.0.0 (the
bytes that are signed), the Sigstore bundle format 0.3.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from strata_pack.errors import BadInput, CheckFailed
from strata_pack.files import dump_json, parse_json_object, read_json_object
from strata_pack.publish.keys import algorithm, fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"

BUNDLE_LIMIT = 64 << 20
"""Bytes; a file costs about 200 of them."""

_SHA256 = re.compile("[0-9a-f]{64}")
_SIGN_ANEW = "sign it again with `strata-pack sign`"


@dataclass(frozen=True)
class SignedFiles:
    """The signed content: the SHA-256 of every file by its path, and the ignored paths."""

    name: str
    digests: Mapping[str, str]
    left_out: tuple[str, ...]

    def covers(self, path: str) -> bool:
        """Return whether the signature covers ``path``: an existing file there must be listed."""
        return not any(PurePosixPath(path).is_relative_to(out) for out in self.left_out)


def statement(files: SignedFiles) -> dict[str, Any]:
    """Return ``files`` as an in-toto statement with the predicate of OpenSSF Model Signing."""
    ordered = sorted(files.digests.items(), key=lambda item: PurePosixPath(item[0]).parts)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": files.name, "digest": {"sha256": _root_digest(digest for _, digest in ordered)}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": list(files.left_out),
            },
            "resources": [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in ordered],
        },
    }


def sign_bundle(files: SignedFiles, key: EllipticCurvePrivateKey) -> bytes:
    """Return the signature file over ``files``."""
    payload = json.dumps(statement(files), ensure_ascii=False, separators=(",", ":")).encode()
    signature = key.sign(signed_bytes(payload), algorithm(key))
    return dump_json(
        {
            "mediaType": MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": fingerprint(key.public_key())}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        }
    )


def signed_bytes(payload: bytes) -> bytes:
    """Return the bytes that are signed for ``payload`` (DSSE's pre-authentication encoding)."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def key_hint(path: Path) -> str | None:
    """Return the name of the key that the signature file claims to be signed with, ``None`` if it names none."""
    return _hint(_Bundle.read(path))


def open_bundle(path: Path, key: EllipticCurvePublicKey, key_path: Path) -> SignedFiles:
    """Check the signature file ``path`` with ``key`` and return its content.

    Raises ``BadInput`` for a file of another format, ``CheckFailed`` for another key, another signature or another kind
    of statement.
    """
    from cryptography.exceptions import InvalidSignature

    bundle = _Bundle.read(path)
    hint, own = _hint(bundle), fingerprint(key)
    if hint is not None and hint != own:
        raise CheckFailed(f"was signed with another key ({hint[:16]}) than {key_path} ({own[:16]})", where=path)
    try:
        key.verify(bundle.signature, signed_bytes(bundle.payload), algorithm(key))
    except InvalidSignature:
        raise CheckFailed(
            f"its signature is not one of {key_path}: it was made with another key, or changed since", where=path
        ) from None
    return _signed_files(parse_json_object(bundle.payload, path), path)


@dataclass(frozen=True)
class _Bundle:
    """The parts of a signature file, not yet verified."""

    path: Path
    material: Mapping[str, Any]
    payload: bytes
    signature: bytes

    @classmethod
    def read(cls, path: Path) -> _Bundle:
        value = read_json_object(path, BUNDLE_LIMIT)
        if value.get("mediaType") != MEDIA_TYPE:
            problem = f"is no signature of a kind that is known here (media type {str(value.get('mediaType'))[:80]!r})"
            raise BadInput(problem, where=path, remedy=_SIGN_ANEW)
        try:
            envelope, material = value["dsseEnvelope"], value["verificationMaterial"]
            (signature,) = envelope["signatures"]
            payload, signed = (
                base64.b64decode(text, validate=True) for text in (envelope["payload"], signature["sig"])
            )
            payload_type = envelope["payloadType"]
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise BadInput("is a damaged signature, or one of several signers", where=path, remedy=_SIGN_ANEW) from None
        if payload_type != PAYLOAD_TYPE:
            raise BadInput(f"signs {str(payload_type)[:80]!r}, not an in-toto statement", where=path)
        if not isinstance(material, dict) or not isinstance(material.get("publicKey"), dict):
            raise BadInput("is signed with a certificate, not with a key", where=path, remedy=_SIGN_ANEW)
        return cls(path, material, payload, signed)


def _hint(bundle: _Bundle) -> str | None:
    hint = bundle.material["publicKey"].get("hint")
    return hint if isinstance(hint, str) and hint else None


def _signed_files(value: Mapping[str, Any], path: Path) -> SignedFiles:
    if value.get("_type") != STATEMENT_TYPE:
        raise CheckFailed(f"signs {str(value.get('_type'))[:80]!r}, not an in-toto statement", where=path)
    if value.get("predicateType") != PREDICATE_TYPE:
        found = str(value.get("predicateType"))[:80]
        raise CheckFailed(f"is a statement of another kind ({found!r}), not a model's signature", where=path)
    try:
        (subject,), predicate = value["subject"], value["predicate"]
        kind, resources = predicate["serialization"], predicate["resources"]
        name, root = str(subject["name"]), subject["digest"]["sha256"]
        if (kind["method"], kind["hash_type"]) != ("files", "sha256"):
            found = f"{str(kind['method'])[:40]!r} with {str(kind['hash_type'])[:40]!r}"
            raise BadInput(f"hashes {found}, not one SHA-256 a file", where=path, remedy=_SIGN_ANEW)
        digests = {str(resource["name"]): str(resource["digest"]) for resource in resources}
        sound = all(one["algorithm"] == "sha256" and _SHA256.fullmatch(str(one["digest"])) for one in resources)
        left_out = tuple(str(one) for one in kind.get("ignore_paths", ()))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput("is not the statement of a model's signature", where=path, remedy=_SIGN_ANEW) from None
    if len(digests) != len(resources) or not sound or _root_digest(digests.values()) != root:
        raise BadInput("contradicts itself: its files do not hash to its subject", where=path, remedy=_SIGN_ANEW)
    return SignedFiles(name, digests, left_out)


def _root_digest(digests: Any) -> str:
    root = hashlib.sha256()
    for digest in digests:
        root.update(bytes.fromhex(digest))
    return root.hexdigest()

"""Sign a pack, and check that its files are exactly the signed ones.

The signature is the pack's file ``model.sig`` and covers every other file in the folder: the model and all that the
manifest lists, the manifest, attestations, card and reports. Only the journal of template installations and
a git repository's files are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strata_pack.errors import CheckFailed, StrataError
from strata_pack.files import write_atomic
from strata_pack.pack.contents import hashed, walk
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import MANIFEST, SIGNATURE, STATE_DIR, member
from strata_pack.pack.verification import FurtherCheck, checked
from strata_pack.progress import Progress, Silent
from strata_pack.publish.bundle import SignedFiles, key_hint, open_bundle, sign_bundle
from strata_pack.publish.keys import fingerprint, read_private_key, read_public_key
from strata_pack.report.model import Check

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LEFT_OUT = (SIGNATURE, STATE_DIR, ".git", ".gitattributes", ".github", ".gitignore")
"""Paths that the signature does not cover; git's files are a default of OpenSSF Model Signing."""

TITLE = "the signature is that of the key, over these very files"


@dataclass(frozen=True)
class Signed:
    """A written signature: its path, the number of signed files, and the key's fingerprint."""

    path: Path
    files: int
    fingerprint: str


def sign_pack(path: Path, key: Path, progress: Progress | None = None) -> Signed:
    """Sign the pack in ``path`` with the private key in the file ``key``.

    Raises ``CheckFailed`` if a file differs from the manifest, ``BadInput`` if ``path`` is no pack or ``key`` no key.
    """
    private = read_private_key(key, progress)
    pack = Pack.open(path)
    watcher = progress or Silent()
    digests = {
        name: hashed(pack.path / name, name, watcher) for name in _present(pack.path, SignedFiles("", {}, LEFT_OUT))
    }
    for entry in pack.manifest["files"]:
        if digests.get(entry["path"]) != entry["sha256"]:
            problem = f"{entry['path']} is not what the manifest says; nothing was signed"
            raise CheckFailed(problem, where=path, remedy="see `strata-pack verify`")
    write_atomic(pack.path / SIGNATURE, sign_bundle(SignedFiles(pack.path.name, digests, LEFT_OUT), private))
    return Signed(pack.path / SIGNATURE, len(digests), fingerprint(private.public_key()))


def fresh_signature(pack: Pack, digests: Mapping[str, str], key: EllipticCurvePrivateKey) -> bytes | None:
    """Return a new signature of ``digests``, ``None`` if the pack's signature already matches files and key.

    ECDSA signatures differ each time, so a matching one is kept and published files do not change needlessly.
    """
    covered = {name: digest for name, digest in digests.items() if _covered(name)}
    path = pack.path / SIGNATURE
    if path.is_file():
        with contextlib.suppress(StrataError):
            signed = open_bundle(path, key.public_key(), path)
            if signed.digests == covered and signed.left_out == LEFT_OUT:
                return None
    return sign_bundle(SignedFiles(pack.path.name, covered, LEFT_OUT), key)


def _covered(name: str) -> bool:
    return SignedFiles("", {}, LEFT_OUT).covers(name)


def signature_check(key: Path | None, progress: Progress | None = None) -> FurtherCheck:
    """Return the check of a pack's signature with the public key in the file ``key``.

    Without a key the check only reports that there is a signature. Raises ``BadInput`` for an invalid public key.
    """
    public = None if key is None else read_public_key(key)

    def check(pack: Pack, digests: Mapping[str, str]) -> Check:
        path = pack.path / SIGNATURE

        def find() -> list[str]:
            if not path.is_file() or path.is_symlink():
                return [f"it is not signed: there is no {SIGNATURE}"]
            assert public is not None
            assert key is not None
            signed = open_bundle(path, public, key)
            return _differences(pack, signed, digests, progress or Silent())

        if public is None:
            return Check("signature", TITLE, "skipped", _unchecked(path))
        return checked("signature", TITLE, find)

    return check


def is_signed(pack: Path) -> bool:
    """Return whether the pack has a signature file, which is not checked."""
    return (pack / SIGNATURE).is_file()


def _unchecked(path: Path) -> str:
    try:
        hint = key_hint(path)
    except StrataError as error:
        return str(error)
    return f"signed with the key {'of no name' if hint is None else hint[:16]}; check it with --key FILE.pub"


def _differences(pack: Pack, signed: SignedFiles, known: Mapping[str, str], progress: Progress) -> list[str]:
    there = set(_present(pack.path, signed))
    identity = [MANIFEST, *(entry["path"] for entry in pack.manifest["files"])]
    wrong = [f"{name} is not covered by the signature" for name in identity if not signed.covers(name)]
    wrong += [f"{name} is missing since it was signed" for name in sorted(signed.digests.keys() - there)]
    wrong += [f"{name} was added since it was signed" for name in sorted(there - signed.digests.keys())]
    for name in sorted(there & signed.digests.keys()):
        found = known.get(name) or hashed(pack.path / name, name, progress)
        if found != signed.digests[name]:
            wrong.append(f"{name} was changed since it was signed")
    return wrong


def _present(root: Path, signed: SignedFiles) -> list[str]:
    """Return the files in ``root`` that the signature must cover. Raises ``CheckFailed`` for a link."""
    found = [name for name in walk(root) if signed.covers(name) and name != SIGNATURE]
    for name in found:
        if not member(root, name).is_file():
            raise CheckFailed(f"{name} is no plain file", where=root)
    return found

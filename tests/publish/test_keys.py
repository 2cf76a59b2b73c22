"""The pair of keys: who may read it, that it is never overwritten, and what is said of files that are none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, WrongUse
from strata_pack.progress import Silent
from strata_pack.publish.keys import fingerprint, make_keys, read_private_key, read_public_key


def test_the_private_key_is_for_its_user_alone(tmp_path: Path) -> None:
    pair = make_keys(tmp_path / "key.pem")
    assert stat.S_IMODE(pair.private.stat().st_mode) == 0o600
    assert (pair.private.name, pair.public.name) == ("key.pem", "key.pub")


def test_both_halves_belong_together(tmp_path: Path) -> None:
    pair = make_keys(tmp_path / "key.pem")
    public = read_private_key(pair.private).public_key()
    assert fingerprint(public) == fingerprint(read_public_key(pair.public)) == pair.fingerprint


@pytest.mark.parametrize("there", ["key.pem", "key.pub"])
def test_a_key_is_never_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(WrongUse, match="exists already"):
        make_keys(tmp_path / "key.pem")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_is_no_name_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUse, match="is a folder, not a file to write"):
        make_keys(Path("."))


def test_a_private_key_that_others_can_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = make_keys(tmp_path / "key.pem").private
    notes: list[str] = []
    told = Silent()
    monkeypatch.setattr(told, "note", notes.append, raising=False)
    read_private_key(private, told)
    private.chmod(0o640)
    read_private_key(private, told)
    assert notes == [f"{private}: others on this machine can read the private key; `chmod 600` keeps it to you"]


def test_the_private_key_cannot_have_the_public_ones_name(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="public key"):
        make_keys(tmp_path / "key.pub")


def test_a_password_protects_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_KEY_PASSWORD", "right")
    pair = make_keys(tmp_path / "key.pem")
    assert b"ENCRYPTED" in pair.private.read_bytes()
    assert read_private_key(pair.private)
    monkeypatch.setenv("STRATA_KEY_PASSWORD", "wrong")
    with pytest.raises(BadInput, match="check STRATA_KEY_PASSWORD"):
        read_private_key(pair.private)
    monkeypatch.delenv("STRATA_KEY_PASSWORD")
    with pytest.raises(WrongUse, match="set STRATA_KEY_PASSWORD"):
        read_private_key(pair.private)


def pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


WRONG_PRIVATE = {
    "nothing of a key": (b"hello", "no private key that can be read"),
    "half a key": (pem(ec.generate_private_key(ec.SECP256R1()))[:80], "no private key that can be read"),
    "another curve": (pem(ec.generate_private_key(ec.SECP256K1())), "not an ECDSA key on P-256"),
    "another kind of key": (pem(ed25519.Ed25519PrivateKey.generate()), "not an ECDSA key on P-256"),
}


@pytest.mark.parametrize("kind", WRONG_PRIVATE)
def test_what_is_no_private_key_is_one_sentence(tmp_path: Path, kind: str) -> None:
    data, sentence = WRONG_PRIVATE[kind]
    (tmp_path / "key.pem").write_bytes(data)
    with pytest.raises(BadInput, match=sentence):
        read_private_key(tmp_path / "key.pem")


def test_halves_that_are_mixed_up_are_named(tmp_path: Path) -> None:
    pair = make_keys(tmp_path / "key.pem")
    with pytest.raises(BadInput, match="is a public key; sign with the private one"):
        read_private_key(pair.public)
    with pytest.raises(BadInput, match="is a private key; check with the public one"):
        read_public_key(pair.private)


def test_what_is_no_public_key_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text("hello")
    with pytest.raises(BadInput, match="no public key that can be read"):
        read_public_key(tmp_path / "key.pub")


def test_the_command_names_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["keygen", "--out", "key.pem"])
    assert result.exit_code == 0, result.output
    assert "key.pem: the private key" in result.stdout
    assert "key.pub: the public key" in result.stdout

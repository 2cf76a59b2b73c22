"""A signature covers every byte of a pack: whatever is changed, added or missing is refused, with one sentence."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import CheckFailed
from strata_pack.pack.build import build_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.verification import verify
from strata_pack.publish import bundle
from strata_pack.publish.bundle import SignedFiles
from strata_pack.publish.keys import algorithm, make_keys, read_private_key
from strata_pack.publish.signing import sign_pack, signature_check
from strata_pack.report.model import Check
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.pack.tiny_pack import write_pack

CASES = [{"name": "one", "messages": [{"role": "user", "content": "Hi"}], "expected": "user: Hi\n"}]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed pack, its keys, and a second pair."""
    root = tmp_path_factory.mktemp("signed")
    (root / "golden.json").write_text(json.dumps(CASES))
    source = write_tiny(root / "tiny.gguf", STOCK)
    request = BuildRequest(str(source), root / "pack", make_recipe("F16"), template="keep", golden=root / "golden.json")
    pack = build_pack(request).path
    (pack / "README.md").write_text("# a card\n")
    make_keys(root / "key.pem")
    make_keys(root / "other.pem")
    sign_pack(pack, root / "key.pem")
    return root


@pytest.fixture
def place(signed: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(signed, tmp_path / "place"))


def signature(place: Path, key: str = "key.pub") -> Check:
    """Return the check of the signature."""
    return next(
        one for one in verify(place / "pack", None, [signature_check(place / key)]).checks if one.id == "signature"
    )


def test_a_signed_pack_passes(signed: Path) -> None:
    assert verify(signed / "pack", None, [signature_check(signed / "key.pub")]).ok


def files(pack: Path) -> list[str]:
    return sorted(path.relative_to(pack).as_posix() for path in pack.rglob("*") if path.is_file())


def test_any_changed_byte_of_any_file_is_refused(place: Path) -> None:
    pack = place / "pack"
    passed = []
    for name in files(pack):
        whole = (pack / name).read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1}:
            (pack / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            report = verify(pack, None, [signature_check(place / "key.pub")])
            passed += [f"{name}, byte {at}"] if report.ok else []
        (pack / name).write_bytes(whole)
    assert passed == []
    assert verify(pack, None, [signature_check(place / "key.pub")]).ok


@pytest.mark.parametrize("name", ["reports/golden.json", "README.md", "tokenizer/chat_template.jinja"])
def test_a_changed_file_is_named(place: Path, name: str) -> None:
    (place / "pack" / name).write_text("x")
    assert signature(place).detail == f"{name} was changed since it was signed"


@pytest.mark.parametrize("name", ["reports/golden.json", "README.md", "golden/chat_golden.json"])
def test_a_missing_file_is_named(place: Path, name: str) -> None:
    (place / "pack" / name).unlink()
    assert f"{name} is missing since it was signed" in signature(place).detail


@pytest.mark.parametrize("name", ["reports/smoke.json", "model/x.gguf", "deep/er/x", ".hidden", "LICENSE"])
def test_an_added_file_is_named(place: Path, name: str) -> None:
    (place / "pack" / name).parent.mkdir(parents=True, exist_ok=True)
    (place / "pack" / name).write_text("x")
    assert signature(place).detail == f"{name} was added since it was signed"


def test_a_link_in_place_of_a_file_is_refused(place: Path) -> None:
    card = place / "pack/README.md"
    card.rename(place / "README.md")
    card.symlink_to(place / "README.md")
    assert "is a link" in signature(place).detail


def test_a_pipe_is_refused_and_not_waited_for(place: Path) -> None:
    os.mkfifo(place / "pack/reports/pipe")
    assert signature(place).detail.endswith("reports/pipe is no plain file")


def test_state_of_this_machine_is_no_change(place: Path) -> None:
    (place / "pack/.template-install").mkdir()
    (place / "pack/.template-install/backup-0001").write_text("x")
    (place / "pack/.gitattributes").write_text("*.gguf filter=lfs")
    assert signature(place).status == "passed"


def test_the_signature_of_an_earlier_pack_is_refused(place: Path) -> None:
    pack = place / "pack"
    old = (pack / "model.sig").read_bytes()
    (pack / "README.md").write_text("# a newer card\n")
    sign_pack(pack, place / "key.pem")
    assert signature(place).status == "passed"
    (pack / "model.sig").write_bytes(old)
    assert signature(place).detail == "README.md was changed since it was signed"


def test_the_signature_of_another_pack_is_refused(place: Path) -> None:
    other = write_pack(place / "other", "{{ messages }}")
    sign_pack(other, place / "key.pem")
    shutil.copy(other / "model.sig", place / "pack/model.sig")
    assert signature(place).status == "failed"


def test_another_key_is_named(place: Path) -> None:
    assert "was signed with another key" in signature(place, "other.pub").detail


def test_another_key_is_refused_without_a_hint_too(place: Path) -> None:
    edit(place, lambda value: value["verificationMaterial"]["publicKey"].pop("hint"))
    assert signature(place).status == "passed"
    assert "its signature is not one of" in signature(place, "other.pub").detail


def edit(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = place / "pack/model.sig"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def resign(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """FileChange the statement and sign it again with the right key: what remains is what the statement says."""
    key = read_private_key(place / "key.pem")

    def renew(value: dict[str, Any]) -> None:
        envelope = value["dsseEnvelope"]
        said = json.loads(base64.b64decode(envelope["payload"]))
        change(said)
        payload = json.dumps(said).encode()
        envelope["payload"] = base64.b64encode(payload).decode()
        signed = key.sign(bundle.signed_bytes(payload), algorithm(key))
        envelope["signatures"][0]["sig"] = base64.b64encode(signed).decode()

    edit(place, renew)


def leave_out_the_model(said: dict[str, Any]) -> None:
    import hashlib

    kept = [one for one in said["predicate"]["resources"] if not one["name"].startswith("model/")]
    said["predicate"]["resources"] = kept
    said["predicate"]["serialization"]["ignore_paths"].append("model")
    root = hashlib.sha256(b"".join(bytes.fromhex(one["digest"]) for one in kept)).hexdigest()
    said["subject"][0]["digest"]["sha256"] = root


OTHER_KIND = "statement of another kind"

STATEMENTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another predicate": (
        lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
        OTHER_KIND,
    ),
    "the predicate of before version 1": (
        lambda s: s.update(predicateType="https://model_signing/Digests/v0.1"),
        OTHER_KIND,
    ),
    "another statement type": (
        lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
        "not an in-toto statement",
    ),
    "two subjects": (lambda s: s["subject"].append(s["subject"][0]), "not the statement of a model's signature"),
    "another root": (lambda s: s["subject"][0]["digest"].update(sha256="0" * 64), "contradicts itself"),
    "a file twice": (
        lambda s: s["predicate"]["resources"].append(s["predicate"]["resources"][0]),
        "contradicts itself",
    ),
    "another hash": (lambda s: s["predicate"]["serialization"].update(hash_type="blake3"), "not one SHA-256 a file"),
    "shards": (lambda s: s["predicate"]["serialization"].update(method="shards"), "not one SHA-256 a file"),
    "no predicate": (lambda s: s.pop("predicate"), "not the statement of a model's signature"),
    "the model left out": (leave_out_the_model, "model/tiny-F16.gguf is not covered by the signature"),
}


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_statement_that_says_something_else_is_refused_though_signed(place: Path, kind: str) -> None:
    change, sentence = STATEMENTS[kind]
    resign(place, change)
    found = signature(place)
    assert (found.status, sentence in found.detail) == ("failed", True), found.detail


BUNDLES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another media type": (lambda v: v.update(mediaType="application/json"), "no signature of a kind that is known"),
    "another payload type": (lambda v: v["dsseEnvelope"].update(payloadType="text/plain"), "not an in-toto statement"),
    "no signature": (lambda v: v["dsseEnvelope"].update(signatures=[]), "damaged signature, or one of several"),
    "a second signature": (
        lambda v: v["dsseEnvelope"]["signatures"].append(v["dsseEnvelope"]["signatures"][0]),
        "damaged signature, or one of several",
    ),
    "no base64": (lambda v: v["dsseEnvelope"].update(payload="***"), "damaged signature"),
    "a certificate": (
        lambda v: v.update(verificationMaterial={"certificate": {}}),
        "with a certificate",
    ),
    "another signature": (
        lambda v: v["dsseEnvelope"]["signatures"][0].update(sig=base64.b64encode(b"x" * 70).decode()),
        "its signature is not one of",
    ),
}


@pytest.mark.parametrize("kind", BUNDLES)
def test_a_bundle_of_another_kind_is_refused(place: Path, kind: str) -> None:
    change, sentence = BUNDLES[kind]
    edit(place, change)
    found = signature(place)
    assert (found.status, sentence in found.detail) == ("failed", True), found.detail


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"mediaType": 1}'])
def test_what_is_no_bundle_is_refused(place: Path, text: str) -> None:
    (place / "pack/model.sig").write_text(text)
    assert signature(place).status == "failed"


names = st.lists(st.text("abc.-", min_size=1, max_size=3).filter(lambda part: part.strip(".")), min_size=1, max_size=3)
digests = st.dictionaries(names.map("/".join), st.text("0123456789abcdef", min_size=64, max_size=64), max_size=5)


@settings(max_examples=25)
@given(digests)
def test_what_was_signed_is_what_is_read(signed: Path, said: dict[str, str]) -> None:
    key = read_private_key(signed / "key.pem")
    path = signed / "example.sig"
    path.write_bytes(bundle.sign_bundle(SignedFiles("name", said, (".git",)), key))
    found = bundle.open_bundle(path, key.public_key(), path)
    assert (found.name, found.digests, found.left_out) == ("name", said, (".git",))


def test_a_pack_that_is_not_what_its_manifest_says_is_not_signed(place: Path) -> None:
    (place / "pack/tokenizer/chat_template.jinja").write_text("{}")
    (place / "pack/model.sig").unlink()
    with pytest.raises(CheckFailed, match="nothing was signed"):
        sign_pack(place / "pack", place / "key.pem")
    assert not (place / "pack/model.sig").exists()


def test_a_key_demands_a_signature(place: Path) -> None:
    (place / "pack/model.sig").unlink()
    assert signature(place).detail == "it is not signed: there is no model.sig"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_the_commands_sign_and_verify(place: Path) -> None:
    (place / "pack/model.sig").unlink()
    assert run("sign", place / "pack", "--key", place / "key.pem").exit_code == 0
    assert run("verify", place / "pack", "--require-signature", "--key", place / "key.pub").exit_code == 0
    assert run("verify", place / "pack", "--require-signature", "--key", place / "other.pub").exit_code == 1
    (place / "pack/model.sig").unlink()
    assert run("verify", place / "pack", "--require-signature", "--key", place / "key.pub").exit_code == 1
    assert run("verify", place / "pack").exit_code == 0


def test_a_signature_that_nobody_checks_is_reported(place: Path) -> None:
    result = run("verify", place / "pack", "--json")
    (check,) = [one for one in json.loads(result.stdout)["checks"] if one["id"] == "signature"]
    assert (check["status"], "check it with --key" in check["detail"]) == ("skipped", True)


def test_a_required_signature_needs_a_key(place: Path) -> None:
    result = run("verify", place / "pack", "--require-signature")
    assert (result.exit_code, "give --key FILE.pub too" in result.output) == (2, True)


def without_network(*command: object) -> subprocess.CompletedProcess[str]:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode:
        pytest.skip("unshare -rn does not work here")
    words = [unshare, "-rn", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "RUST_BACKTRACE": "0"})


def test_signing_and_verifying_need_no_network(place: Path) -> None:
    tool = (sys.executable, "-m", "strata_pack")
    for words in (
        ("keygen", "--out", place / "new.pem"),
        ("sign", place / "pack", "--key", place / "new.pem"),
        ("verify", place / "pack", "--require-signature", "--key", place / "new.pub"),
    ):
        done = without_network(*tool, *words)
        assert done.returncode == 0, done.stderr


def model_signing(*words: object) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("model_signing")
    command = [sys.executable, "-W", "ignore", "-m", "model_signing", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def theirs(place: Path, verb: str, *more: object) -> subprocess.CompletedProcess[str]:
    return model_signing(verb, "key", place / "pack", "--signature", place / "pack/model.sig", *more)


def test_the_reference_implementation_verifies_ours(place: Path) -> None:
    done = theirs(place, "verify", "--public_key", place / "key.pub")
    assert done.returncode == 0, done.stdout + done.stderr
    (place / "pack/README.md").write_text("x")
    assert theirs(place, "verify", "--public_key", place / "key.pub").returncode != 0


def test_we_verify_that_of_the_reference_implementation(place: Path) -> None:
    (place / "pack/model.sig").unlink()
    done = theirs(place, "sign", "--private_key", place / "key.pem")
    assert done.returncode == 0, done.stdout + done.stderr
    assert signature(place).status == "passed"
    (place / "pack/README.md").write_text("x")
    assert signature(place).detail == "README.md was changed since it was signed"

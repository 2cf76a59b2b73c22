"""Publishing: one commit with everything or nothing, nothing sent twice, nobody overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, CheckFailed, EnvironmentFailure, WrongUse
from strata_pack.pack.verification import verify
from strata_pack.publish.card import Figures
from strata_pack.publish.hub import ConcurrentCommit
from strata_pack.publish.keys import make_keys
from strata_pack.publish.publishing import LicenceQuestion, Published, PublishOptions, parse_target, publish
from strata_pack.publish.signing import signature_check
from strata_pack.publish.update import update_templates
from tests.hub_server import HubServer, folder_files
from tests.hub_uploads import GITATTRIBUTES, UploadFault
from tests.pack.tiny_gguf import STOCK

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

REPO = "me/Tiny-GGUF"


def head(hub: HubServer, repo: str = REPO) -> dict[str, bytes]:
    """Return the files of the repository as everybody sees them."""
    return hub.repos[repo].commits[-1][1]


def kinds(done: Published) -> dict[str, str]:
    return {change.path: change.kind for change in done.changes}


def test_a_repository_gets_packs_card_and_checksums_in_one_commit(packs: list[Path], hub: HubServer) -> None:
    done = publish(packs, REPO)
    assert [set(files) for _, files in hub.repos[REPO].commits[:-1]] == [{".gitattributes"}]
    wanted = {f"{pack.name}/{name}": data for pack in packs for name, data in folder_files(pack).items()}
    found = {name: data for name, data in head(hub).items() if "/" in name}
    assert found == wanted
    assert set(head(hub)) - set(found) == {"README.md", "SHA256SUMS", ".gitattributes"}
    assert done.commit == hub.repos[REPO].commits[-1][0]


def test_a_second_run_sends_nothing(packs: list[Path], hub: HubServer) -> None:
    publish(packs, REPO)
    hub.uploads.requests.clear()
    done = publish(packs, REPO)
    assert set(kinds(done).values()) == {"keep"}
    assert hub.uploads.requests == []


@pytest.mark.usefixtures("hub")
def test_the_order_of_packs_changes_nothing(packs: list[Path]) -> None:
    publish(packs, REPO)
    assert set(kinds(publish(packs[::-1], REPO)).values()) == {"keep"}


def test_what_is_there_is_not_sent_again(packs: list[Path], hub: HubServer) -> None:
    publish(packs[:1], REPO)
    hub.uploads.requests.clear()
    done = publish(packs, REPO)
    changed = {path for path, kind in kinds(done).items() if kind != "keep"}
    assert {path.partition("/")[0] for path in changed} == {"Tiny-F16", "README.md", "SHA256SUMS"}
    assert hub.uploads.sent == 1


def test_a_dry_run_says_all_of_it_and_changes_nothing(packs: list[Path], hub: HubServer, tmp_path: Path) -> None:
    make_keys(tmp_path / "key.pem")
    before = folder_files(packs[0])
    planned = publish(packs, REPO, key=tmp_path / "key.pem", dry_run=True)
    assert (REPO in hub.repos, folder_files(packs[0])) == (False, before)
    done = publish(packs, REPO, key=tmp_path / "key.pem")
    assert [(c.kind, c.path) for c in planned.changes] == [(c.kind, c.path) for c in done.changes]
    assert {c.path: c.size for c in done.changes} == {
        name: len(data) for name, data in head(hub).items() if name != ".gitattributes"
    }


def test_files_of_others_stay_and_old_files_of_a_pack_go(packs: list[Path], hub: HubServer) -> None:
    hub.repo(REPO, {"notes.txt": b"mine", "Tiny-Q8_0/model/old.gguf": b"x", "Tiny-Q8_0-more/x": b"y"})
    done = publish(packs[:1], REPO)
    assert (head(hub)["notes.txt"], head(hub)["Tiny-Q8_0-more/x"]) == (b"mine", b"y")
    assert "Tiny-Q8_0/model/old.gguf" not in head(hub)
    assert kinds(done)["Tiny-Q8_0/model/old.gguf"] == "remove"


def test_a_run_that_dies_at_any_request_leaves_the_repository_and_the_next_one_ends_right(
    packs: list[Path], hub: HubServer
) -> None:
    publish(packs[:1], "me/whole")
    wanted, number = head(hub, "me/whole"), len(hub.uploads.requests)
    card = wanted.pop("README.md")
    assert number >= 6
    for at in range(number):
        hub.uploads.bodies.clear()
        hub.repos.clear()
        hub.uploads.requests.clear()
        hub.uploads.die_at = at
        with pytest.raises(EnvironmentFailure):
            publish(packs[:1], REPO)
        assert REPO not in hub.repos or hub.repos[REPO].private
        hub.uploads.die_at = None
        publish(packs[:1], REPO)
        assert not hub.repos[REPO].private
        found = dict(head(hub))
        assert found.pop("README.md") == card.replace(b"me/whole", REPO.encode())
        assert found == wanted


def test_a_repository_that_somebody_keeps_private_stays_so(packs: list[Path], hub: HubServer) -> None:
    hub.repo(REPO, {".gitattributes": GITATTRIBUTES}).private = True
    publish(packs[:1], REPO)
    assert hub.repos[REPO].private


def test_a_repository_is_opened_early_where_private_storage_is_short(packs: list[Path], hub: HubServer) -> None:
    hub.uploads.faults = [UploadFault("/commit/main", status=403, error="Private repository storage limit reached")]
    publish(packs[:1], REPO)
    assert not hub.repos[REPO].private
    assert f"{packs[0].name}/manifest.json" in head(hub)


FAULTS = {
    "a status that passes": UploadFault("/batch", status=503),
    "a body that is cut": UploadFault("", times=0),
    "a commit whose answer is lost": UploadFault("/commit/main", after=True),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_passing_fault_is_retried(packs: list[Path], hub: HubServer, kind: str) -> None:
    fault = FAULTS[kind]
    hub.uploads.faults = [UploadFault(fault.path, fault.status, fault.after, fault.times)]
    publish(packs[:1], REPO)
    assert f"{packs[0].name}/manifest.json" in head(hub)
    assert len(hub.repos[REPO].commits) == 2


@pytest.mark.parametrize(("status", "sentence"), [(403, "may not be written"), (400, "the Hub refused it")])
def test_what_the_hub_refuses_is_one_sentence(packs: list[Path], hub: HubServer, status: int, sentence: str) -> None:
    hub.uploads.faults = [UploadFault("/commit/main", status=status)]
    with pytest.raises(EnvironmentFailure, match=sentence):
        publish(packs[:1], REPO)
    assert head(hub) == {".gitattributes": GITATTRIBUTES}


def test_a_publisher_of_other_files_is_no_conflict(packs: list[Path], hub: HubServer) -> None:
    hub.uploads.before_commit = lambda name: hub.repos[name].commit({**head(hub, name), "other.txt": b"other"}) and None
    publish(packs[:1], REPO)
    assert head(hub)["other.txt"] == b"other"
    assert f"{packs[0].name}/manifest.json" in head(hub)


def test_a_publisher_of_the_same_files_is_not_overwritten(packs: list[Path], hub: HubServer) -> None:
    theirs = {f"{packs[0].name}/manifest.json": b"theirs"}
    hub.uploads.before_commit = lambda name: hub.repos[name].commit({**head(hub, name), **theirs}) and None
    with pytest.raises(ConcurrentCommit, match="somebody else published the same files"):
        publish(packs[:1], REPO)
    assert head(hub)[f"{packs[0].name}/manifest.json"] == b"theirs"


def test_files_that_a_gitignore_swallows_are_missed(packs: list[Path], hub: HubServer) -> None:
    hub.uploads.gitignored = frozenset({f"{packs[0].name}/manifest.json"})
    with pytest.raises(EnvironmentFailure, match=r"manifest\.json is not there as it was sent"):
        publish(packs[:1], REPO)


def test_every_published_pack_verifies_with_its_signature(packs: list[Path], hub: HubServer, tmp_path: Path) -> None:
    pair = make_keys(tmp_path / "key.pem")
    publish(packs, REPO, key=pair.private)
    for name, data in head(hub).items():
        path = tmp_path / "got" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for pack in packs:
        assert verify(tmp_path / "got" / pack.name, None, [signature_check(pair.public)]).ok
    assert publish(packs, REPO, key=pair.private).travelling == 0


def test_a_pack_that_does_not_verify_is_not_published(packs: list[Path], hub: HubServer) -> None:
    (packs[0] / "tokenizer/chat_template.jinja").write_text("{{ 1 }}")
    with pytest.raises(CheckFailed, match="does not verify"):
        publish(packs, REPO)
    assert hub.repos == {}


def test_a_link_out_of_a_pack_is_not_followed(packs: list[Path], hub: HubServer) -> None:
    (packs[0] / "reports").mkdir(exist_ok=True)
    (packs[0] / "reports/x").symlink_to("/etc/hostname")
    with pytest.raises(CheckFailed, match="no plain file"):
        publish(packs, REPO)
    assert hub.repos == {}


def test_a_gated_source_stops_with_a_question(packs: list[Path], hub: HubServer) -> None:
    hub.repo("org/Base-1B", {"x": b""}).asks = True
    manifest = json.loads((packs[0] / "manifest.json").read_bytes())
    manifest["source"] |= {"kind": "hub", "repo": "org/Base-1B", "commit": "0" * 40}
    from strata_pack.files import dump_json
    from strata_pack.pack.attestations.files import attestation_files

    (packs[0] / "manifest.json").write_bytes(dump_json(manifest))
    for name, data in attestation_files(manifest).items():
        (packs[0] / name).write_bytes(data)
    with pytest.raises(LicenceQuestion, match=r"org/Base-1B is gated"):
        publish(packs[:1], REPO)
    publish(packs[:1], REPO, options=PublishOptions(accept_licence=True))


def test_figures_stand_in_the_card_and_stay_there(packs: list[Path], hub: HubServer) -> None:
    figures = {"Tiny-Q8_0": Figures(0.01, 19, 20), "Tiny-F16": Figures(0.001, 20, 20)}
    publish(packs, REPO, options=PublishOptions(figures=figures))
    first = head(hub)["README.md"]
    assert b"| 0.0100 | 19 of 20 |" in first
    assert b"<svg" in head(hub)["quality.svg"]
    publish(packs, REPO)
    assert head(hub)["README.md"] == first


def test_damaged_figures_are_passed_over(packs: list[Path], hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/figures.json").write_text("[1,")
    hub.repo(REPO, {"figures.json": b"[1,"})
    for target in (REPO, f"dir:{tmp_path / 'out'}"):
        assert kinds(publish(packs[:1], target))["README.md"] == "add"


def test_the_card_is_read_by_the_hubs_own_reader(packs: list[Path], tmp_path: Path) -> None:
    publish(packs, f"dir:{tmp_path / 'out'}", options=PublishOptions(author="me"))
    data: Any = ModelCard.load(tmp_path / "out/README.md").data
    assert (data.license, data.base_model, data.base_model_relation) == ("apache-2.0", "org/Base-1B", "quantized")
    assert (data.quantized_by, data.pipeline_tag) == ("me", "text-generation")
    assert {"gguf", "Q8_0", "F16"} <= set(data.tags)


def test_a_folder_is_replaced_in_one_step_and_keeps_what_is_others(packs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    publish(packs, f"dir:{out}")
    assert (out / "notes.txt").read_text() == "mine"
    for pack in packs:
        assert verify(out / pack.name).ok
    assert set(kinds(publish(packs, f"dir:{out}")).values()) == {"keep"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


def test_a_published_folder_does_not_change_with_the_pack(packs: list[Path], tmp_path: Path) -> None:
    publish(packs, f"dir:{tmp_path / 'out'}")
    before = folder_files(tmp_path / "out")
    (tmp_path / "new.jinja").write_text(STOCK + "{# newer #}")
    update_templates(packs, f"dir:{tmp_path / 'out'}", str(tmp_path / "new.jinja"))
    assert folder_files(tmp_path / "out") == before


def test_a_folder_that_a_killed_publisher_left_is_cleared_and_a_foreign_one_is_not(
    packs: list[Path], tmp_path: Path
) -> None:
    work = tmp_path / "out.publishing"
    work.mkdir()
    (work / "precious").write_text("x")
    with pytest.raises(WrongUse, match="is in the way"):
        publish(packs[:1], f"dir:{tmp_path / 'out'}")
    (work / ".strata-publishing").touch()
    publish(packs[:1], f"dir:{tmp_path / 'out'}")
    assert not work.exists()


@pytest.mark.parametrize("place", ["packs", "packs/Tiny-Q8_0/x", "oci:packs/Tiny-Q8_0/x"])
def test_a_place_in_a_pack_or_around_it_is_refused(packs: list[Path], tmp_path: Path, place: str) -> None:
    kind = "oci:" if place.startswith("oci:") else "dir:"
    with pytest.raises(WrongUse, match="choose a folder apart from the packs"):
        publish(packs[:1], f"{kind}{tmp_path / place.removeprefix(kind)}", options=PublishOptions(accept_licence=True))
    assert verify(packs[0]).ok


def test_a_newer_template_gets_into_every_published_pack(packs: list[Path], hub: HubServer, tmp_path: Path) -> None:
    publish(packs, REPO)
    (tmp_path / "new.jinja").write_text(STOCK + "{# newer #}")
    found = update_templates([], REPO, str(tmp_path / "new.jinja"), tmp_path / "work")
    assert [pack.name for pack in found] == ["Tiny-F16", "Tiny-Q8_0"]
    done = publish(found, REPO)
    assert len(hub.repos[REPO].commits) == 3
    assert kinds(done)["Tiny-F16/model/Tiny-F16.gguf"] == "replace"
    for pack in ("Tiny-F16", "Tiny-Q8_0"):
        assert head(hub)[f"{pack}/tokenizer/chat_template.jinja"] == (tmp_path / "new.jinja").read_bytes()


@pytest.mark.parametrize("text", ["", "oci:", "hf://x", "a b", "x"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_target(text)


TARGETS = {
    "me/x": ("hub", "me/x"),
    "hf://me/x": ("hub", "me/x"),
    "/srv/x": ("dir", "/srv/x"),
    "dir:me/x": ("dir", "me/x"),
    "oci:x": ("oci", "x"),
}


@pytest.mark.parametrize("text", TARGETS)
def test_a_target_says_its_kind(text: str) -> None:
    assert parse_target(text) == TARGETS[text]


def test_packs_of_one_name_are_refused(packs: list[Path], hub: HubServer) -> None:
    with pytest.raises(WrongUse, match="two packs are called"):
        publish([packs[0], packs[0]], REPO)
    assert hub.repos == {}


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_the_command_shows_every_change(packs: list[Path], tmp_path: Path) -> None:
    result = run("publish", *packs, "--to", tmp_path / "out", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "add     Tiny-F16/manifest.json" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_licence_that_nobody_read_stops_the_command(packs: list[Path], tmp_path: Path) -> None:
    manifest = packs[0] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"apache-2.0"', '"other"'))
    for name in ("provenance.json", "sbom.cdx.json"):
        (packs[0] / name).unlink()
    result = run("publish", packs[0], "--to", tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert "is one of its own" in result.output
    assert run("publish", packs[0], "--to", tmp_path / "out", "--accept-licence").exit_code == 0

"""Exports: each file has the form that its program reads, and leaves the pack's template in charge."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_file
from strata_pack.publish.exports import PROGRAMS, ExportOptions, export, find_program


def test_a_modelfile_names_the_weights_and_no_template(packs: list[Path], tmp_path: Path) -> None:
    (path,) = export("ollama", packs[0], tmp_path / "out").files
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    (source,) = [line.removeprefix("FROM ") for line in lines if line.startswith("FROM ")]
    assert (path.parent / source).resolve() == (packs[0] / "model/Tiny-Q8_0.gguf").resolve()
    assert {line.split()[0] for line in lines if line} <= {"FROM", "PARAMETER", "LICENSE"}
    assert 'LICENSE """apache-2.0"""' in lines


def test_a_modelfile_can_pass_prompts_on_as_they_come(packs: list[Path], tmp_path: Path) -> None:
    (path,) = export("ollama", packs[0], tmp_path / "out", ExportOptions(template="raw", context=4096)).files
    text = path.read_text()
    assert 'TEMPLATE """{{ .Prompt }}"""' in text
    assert "PARAMETER num_ctx 4096" in text


def test_model_yaml_holds_the_template_as_it_is(packs: list[Path], tmp_path: Path) -> None:
    (path,) = export("lmstudio", packs[0], tmp_path / "out", ExportOptions(repo="me/Tiny-GGUF")).files
    value = yaml.safe_load(path.read_text())
    (field,) = value["config"]["operation"]["fields"]
    template = field["value"]["jinjaPromptTemplate"]["template"]
    assert template == (packs[0] / "tokenizer/chat_template.jinja").read_text()
    assert value["base"][0]["sources"] == [{"type": "huggingface", "user": "me", "repo": "Tiny-GGUF"}]
    assert value["metadataOverrides"]["compatibilityTypes"] == ["gguf"]


def test_the_llama_swap_entry_starts_llama_server_with_jinja(packs: list[Path], tmp_path: Path) -> None:
    (path,) = export("llama-swap", packs[0], tmp_path / "out", ExportOptions(context=4096)).files
    ((name, entry),) = yaml.safe_load(path.read_text())["models"].items()
    words = shlex.split(entry["cmd"])
    model = words[words.index("-m") + 1]
    assert (name, Path(model)) == ("Tiny-Q8_0", packs[0] / "model/Tiny-Q8_0.gguf")
    assert ("--jinja" in words, words[words.index("--port") + 1], words[-1]) == (True, "${PORT}", "4096")


def blob(out: Path, descriptor: dict[str, Any]) -> Path:
    """Return the file of a descriptor, whose size and hash are what it says."""
    algorithm, _, digest = descriptor["digest"].partition(":")
    path = out / "blobs" / algorithm / digest
    assert (path.stat().st_size, sha256_file(path)) == (descriptor["size"], digest)
    return path


def test_an_image_holds_weights_and_template_by_their_hashes(packs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    export("oci", packs[0], out)
    assert json.loads((out / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((out / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(out, entry).read_text())
    config = json.loads(blob(out, manifest["config"]).read_text())
    assert (config["config"]["format"], config["config"]["quantization"]) == ("gguf", "Q8_0")
    layers = {layer["mediaType"]: blob(out, layer).read_bytes() for layer in manifest["layers"]}
    assert layers["application/vnd.docker.ai.gguf.v3"] == (packs[0] / "model/Tiny-Q8_0.gguf").read_bytes()
    template = (packs[0] / "tokenizer/chat_template.jinja").read_bytes()
    assert layers["application/vnd.docker.ai.chat.template.jinja"] == template
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]


def test_images_share_a_layout_and_the_same_pack_is_the_same_image(packs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for pack in (*packs, packs[0]):
        export("oci", pack, out)
    entries = json.loads((out / "index.json").read_text())["manifests"]
    names = [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in entries]
    assert sorted(names) == ["Tiny-F16", "Tiny-Q8_0"]


def test_a_folder_of_something_else_is_no_layout(packs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(WrongUse, match="no OCI layout"):
        export("oci", packs[0], tmp_path)


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_exported_into_a_pack(packs: list[Path], program: str) -> None:
    for place in (packs[0], packs[0] / "more"):
        with pytest.raises(WrongUse, match="choose a folder apart from the packs"):
            export(find_program(program), packs[0], place)


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one != "oci"])
def test_a_file_that_is_there_is_not_replaced(packs: list[Path], tmp_path: Path, program: str) -> None:
    export(find_program(program), packs[0], tmp_path / "out")
    with pytest.raises(WrongUse, match="exists already"):
        export(find_program(program), packs[0], tmp_path / "out")
    export(find_program(program), packs[0], tmp_path / "out", ExportOptions(force=True))


def test_a_repository_that_cannot_be_is_refused(packs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a valid hub id"):
        export("lmstudio", packs[0], tmp_path, ExportOptions(repo="x"))


def test_the_command_says_what_to_do_next(packs: list[Path], tmp_path: Path) -> None:
    arguments = ["export", "ollama", str(packs[0]), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "ollama create tiny-q8_0 -f" in result.stdout


def test_an_unknown_program_is_wrong_use(packs: list[Path], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", "olama", str(packs[0]), "--out", str(tmp_path)])
    assert (result.exit_code, "did you mean 'ollama'" in result.output) == (2, True)

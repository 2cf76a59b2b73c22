"""Which files of a repository a build needs."""

from __future__ import annotations

import json

import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.hub.select import Weights, choose_weights, select_files
from strata_pack.weights.hub.tree import RepoFile, RepoTree

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
GGUFS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
INDEX = "model.safetensors.index.json"


def index_of(*files: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor.{n}": file for n, file in enumerate(files)}}).encode()


def choose(*names: str, path: str | None = None, index: bytes = index_of(*SHARDS)) -> Weights:
    return choose_weights(names, path, "org/name@main", lambda _name: index)


@pytest.mark.parametrize(
    ("names", "path", "weights"),
    [
        (("model.safetensors", "a.gguf"), None, Weights("safetensors", ("model.safetensors",))),
        ((*SHARDS, INDEX), None, Weights("safetensors", SHARDS, INDEX)),
        ((*SHARDS, INDEX, "consolidated.safetensors"), None, Weights("safetensors", SHARDS, INDEX)),
        (("a.gguf",), None, Weights("gguf", ("a.gguf",))),
        (("a.gguf", "mmproj-a.gguf", "imatrix.gguf"), None, Weights("gguf", ("a.gguf",))),
        (GGUFS, None, Weights("gguf", GGUFS)),
        ((*GGUFS, "model.safetensors"), GGUFS[1], Weights("gguf", GGUFS)),
        (("a.gguf", "b.gguf"), "b.gguf", Weights("gguf", ("b.gguf",))),
        (("x/a.gguf", "y/b.gguf"), "y", Weights("gguf", ("y/b.gguf",))),
        (("x/model.safetensors", "model.safetensors"), "x", Weights("safetensors", ("x/model.safetensors",))),
        (("qwen.safetensors",), None, Weights("safetensors", ("qwen.safetensors",))),
        (
            ("model.safetensors", "model-mtp.safetensors", "model.fp16.safetensors", "training.safetensors"),
            None,
            Weights("safetensors", ("model-mtp.safetensors", "model.safetensors")),
        ),
        (("adapter_model.safetensors", "a.gguf"), None, Weights("gguf", ("a.gguf",))),
    ],
)
def test_choice(names: tuple[str, ...], path: str | None, weights: Weights) -> None:
    assert choose(*names, path=path) == weights


@pytest.mark.parametrize(
    ("names", "path", "sentence"),
    [
        (("a.gguf", "b.gguf"), None, r"2 GGUF models \(a.gguf, b.gguf\); name one"),
        (tuple(f"{n}.gguf" for n in range(20)), None, "and 12 more"),
        (("pytorch_model.bin",), None, "only pickled weights"),
        (("README.md",), None, "no safetensors and no GGUF"),
        (SHARDS, None, "no model.safetensors.index.json"),
        ((SHARDS[0], INDEX), None, "the shard model-00002-of-00002.safetensors, which .* names, is missing"),
        (("a.safetensors", "b.safetensors"), None, "2 safetensors files .* but no model.safetensors.index.json"),
        (("adapter_model.safetensors",), None, "a LoRA adapter"),
        (("a.safetensors.index.json", "b.safetensors.index.json"), None, "has 2 indexes"),
        ((GGUFS[0], "x"), None, "the shard m-00002-of-00002.gguf is missing"),
        ((GGUFS[1],), None, "whose first shard is missing"),
        (("m-00001-of-99999.gguf",), None, "claims 99999 shards"),
        (("a.gguf",), "b.gguf", "no file or folder b.gguf"),
        (("config.json",), "config.json", "not a GGUF file"),
        (("x/config.json",), "x", "no safetensors and no GGUF"),
    ],
)
def test_no_single_answer_is_refused(names: tuple[str, ...], path: str | None, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        choose(*names, path=path)


@pytest.mark.parametrize("pair", [("Tool.jinja", "tool.jinja"), ("\u00e9.jinja", "e\u0301.jinja")])
def test_names_that_a_disk_without_case_merges_are_refused(pair: tuple[str, str]) -> None:
    names = ["model.safetensors", *(f"additional_chat_templates/{name}" for name in pair)]
    tree = RepoTree("org/name", "main", "0" * 40, tuple(RepoFile(name, 1, "0" * 40) for name in names))
    with pytest.raises(BadInput, match=f"files .*{pair[0]} and .*{pair[1]} are one file on a disk that ignores case"):
        select_files(tree, None, lambda _name: b"")


@pytest.mark.parametrize("file", ["x" * 5000, ["x" * 5000]])
def test_a_message_about_an_index_shows_the_beginning_of_a_long_name(file: object) -> None:
    data = json.dumps({"weight_map": {"t" * 5000: file}}).encode()
    with pytest.raises(BadInput) as refused:
        choose(*SHARDS, INDEX, index=data)
    assert len(str(refused.value)) < 400


NAMED = {
    "a head of its own": (*SHARDS, "mtp.safetensors"),
    "a head called like a model": (*SHARDS, "model-mtp.safetensors"),
    "a subfolder": (*SHARDS, "mtp/model.safetensors"),
    "another stem": ("qwen-00001-of-00001.safetensors", "extra.safetensors"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("index", [INDEX, "qwen.safetensors.index.json"])
def test_every_file_that_the_index_names_is_chosen(name: str, index: str) -> None:
    files = NAMED[name]
    found = choose(*files, index, "consolidated.safetensors", index=index_of(*files))
    assert found == Weights("safetensors", tuple(sorted(files)), index)


def test_the_files_of_an_index_in_a_folder_are_relative_to_it() -> None:
    found = choose("x/a/mtp.safetensors", f"x/{INDEX}", path="x", index=index_of("a/mtp.safetensors"))
    assert found == Weights("safetensors", ("x/a/mtp.safetensors",), f"x/{INDEX}")


@pytest.mark.parametrize("file", ["../evil.safetensors", "/etc/evil.safetensors", "a\\b.safetensors"])
def test_an_index_that_names_a_place_outside_is_refused(file: str) -> None:
    with pytest.raises(BadInput, match="unsafe name"):
        choose(INDEX, index=index_of(file))


@pytest.mark.parametrize("index", [b"<html>", b"{}", b"[]", b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": "x"}}'])
def test_a_malformed_index_is_refused(index: bytes) -> None:
    with pytest.raises(BadInput, match="is malformed"):
        choose(*SHARDS, INDEX, index=index)


def tree(*names: str) -> RepoTree:
    return RepoTree("org/name", "main", "0" * 40, tuple(RepoFile(name, 7, "0" * 40) for name in names))


def unread(name: str) -> bytes:
    raise AssertionError(f"{name} was read")


def test_only_what_a_build_needs_is_selected() -> None:
    names = (
        "config.json", "tokenizer.json", "chat_template.jinja", "README.md", "merges.txt", "model.safetensors",
        "pytorch_model.bin", "a.gguf", "onnx/model.onnx", "LICENSE", ".gitattributes", "x/config.json",
    )  # fmt: skip
    selection = select_files(tree(*names), None, unread)
    assert tuple(file.path for file in selection.files) == names[:6]
    assert tuple(file.path for file in selection.skipped) == names[6:]
    assert selection.nbytes == 42


def test_gguf_in_a_folder_takes_the_config_from_the_top() -> None:
    selection = select_files(tree("config.json", "q4/a.gguf", "q8/a.gguf", "q8/config.json"), "q4", unread)
    assert [file.path for file in selection.files] == ["config.json", "q4/a.gguf"]


def test_gguf_in_a_folder_takes_the_config_next_to_it() -> None:
    selection = select_files(tree("config.json", "q8/a.gguf", "q8/config.json"), "q8/a.gguf", unread)
    assert [file.path for file in selection.files] == ["q8/a.gguf", "q8/config.json"]

"""Which files of a repository a build needs."""

from __future__ import annotations

import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.hub.repo import RepoFile, RepoTree
from strata_pack.weights.hub.select import Weights, choose_weights, select_files

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
GGUFS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
INDEX = "model.safetensors.index.json"


def choose(*names: str, path: str | None = None) -> Weights:
    return choose_weights(names, path, "org/name@main")


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
        ((SHARDS[0], INDEX), None, "the shard model-00002-of-00002.safetensors is missing"),
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


def tree(*names: str) -> RepoTree:
    return RepoTree("org/name", "main", "0" * 40, tuple(RepoFile(name, 7, "0" * 40) for name in names))


def test_only_what_a_build_needs_is_selected() -> None:
    names = (
        "config.json", "tokenizer.json", "chat_template.jinja", "README.md", "merges.txt", "model.safetensors",
        "pytorch_model.bin", "a.gguf", "onnx/model.onnx", "LICENSE", ".gitattributes", "x/config.json",
    )  # fmt: skip
    selection = select_files(tree(*names))
    assert tuple(file.path for file in selection.files) == names[:6]
    assert tuple(file.path for file in selection.skipped) == names[6:]
    assert selection.nbytes == 42


def test_gguf_in_a_folder_takes_the_config_from_the_top() -> None:
    selection = select_files(tree("config.json", "q4/a.gguf", "q8/a.gguf", "q8/config.json"), "q4")
    assert [file.path for file in selection.files] == ["config.json", "q4/a.gguf"]


def test_gguf_in_a_folder_takes_the_config_beside_it() -> None:
    selection = select_files(tree("config.json", "q8/a.gguf", "q8/config.json"), "q8/a.gguf")
    assert [file.path for file in selection.files] == ["q8/a.gguf", "q8/config.json"]

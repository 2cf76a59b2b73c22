"""The tokenizer files of a pack: what is read off GGUF metadata, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from strata_pack.weights.tokenizer.files import tokenizer_files


def metadata(
    tokens: list[str], merges: list[str], types: list[int] | None = None, model: str = "gpt2"
) -> dict[str, MetaValue]:
    found = {
        "tokenizer.ggml.model": MetaValue.string(model),
        "tokenizer.ggml.tokens": MetaValue.array(GGUFValueType.STRING, tokens),
        "tokenizer.ggml.merges": MetaValue.array(GGUFValueType.STRING, merges),
    }
    if types is not None:
        found["tokenizer.ggml.token_type"] = MetaValue.array(GGUFValueType.INT32, types)
    return found


def test_files_are_exactly_these_bytes() -> None:
    files = tokenizer_files(metadata(["a", "Ġ", "Ġa", "<think>"], ["Ġ a"], [1, 1, 1, 4]))
    assert files == {
        "vocab.json": '{"a":0,"Ġ":1,"Ġa":2,"<think>":3}\n'.encode(),
        "merges.txt": "Ġ a\n".encode(),
        "token_type.json": b"[1,1,1,4]\n",
    }


def test_tokens_without_types_are_normal() -> None:
    assert tokenizer_files(metadata(["a", "b"], []))["token_type.json"] == b"[1,1]\n"


@pytest.mark.parametrize("model", ["llama", "bert", "t5"])
def test_other_tokenizers_have_no_files(model: str) -> None:
    assert tokenizer_files(metadata(["a"], [], model=model)) == {}


def test_metadata_without_a_tokenizer_has_no_files() -> None:
    assert tokenizer_files({}) == {}


@pytest.mark.parametrize(
    ("tokens", "merges", "types", "sentence"),
    [
        (["a", "b", "a"], [], None, "has the token 'a' twice"),
        (["a", "b"], ["a b"], None, "'ab' is no token"),
        (["a", "ab"], ["a b"], None, "'b' is no token"),
        (["a", "b"], ["ab"], None, "not a pair of tokens"),
        (["a", "b"], ["a "], None, "not a pair of tokens"),
        (["a", "b\n", "ab\n"], ["a b\n"], None, "not a pair of tokens"),
        (["a", "b"], [], [1], "has 1 entries for 2 tokens"),
    ],
)
def test_vocabulary_that_the_files_cannot_hold_is_refused(
    tokens: list[str], merges: list[str], types: list[int] | None, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        tokenizer_files(metadata(tokens, merges, types))


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_missing_array_is_named(key: str) -> None:
    found = metadata(["a"], [])
    del found[f"tokenizer.ggml.{key}"]
    with pytest.raises(BadInput, match=f"tokenizer.ggml.{key}"):
        tokenizer_files(found)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, min_size=1))
def test_vocabulary_survives_the_round_trip(tokens: list[str]) -> None:
    vocabulary = json.loads(tokenizer_files(metadata(tokens, []))["vocab.json"])
    assert vocabulary == {token: index for index, token in enumerate(tokens)}


def test_real_model_has_dense_ids_and_whole_merges(smollm2: Path) -> None:
    with GgufFile.open(smollm2) as file:
        files = tokenizer_files(file.metadata)
    vocabulary = json.loads(files["vocab.json"])
    assert sorted(vocabulary.values()) == list(range(49152))
    assert json.loads(files["token_type.json"])[vocabulary["<|im_start|>"]] == 3
    assert files["merges.txt"].count(b"\n") == 48900

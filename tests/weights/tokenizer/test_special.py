"""Special tokens, pre-tokenizers and vocabularies of checkpoints, as llama.cpp's converter reads them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput, WrongUse
from strata_pack.weights.tokenizer.bpe import looks_special, read_bpe
from strata_pack.weights.tokenizer.pre import pre_tokenizer
from strata_pack.weights.tokenizer.special import special_tokens
from strata_pack.weights.tokenizer.spm import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, read_spm
from tests.tiny_configs import LLAMA3_SPLIT, QWEN2_SPLIT, QWEN35_SPLIT
from tests.tiny_models import MODELS, sentence_piece_model, tokenizer_json
from tests.weights.convert.test_convert import script

__all__ = ["script"]

Json = dict[str, Any]
WHERE = Path("tokenizer.json")
TOKENS = ["<a>", "<b>", "<c>", "<d>"]
BYTE_LEVEL: Json = {"type": "ByteLevel"}


def special(text: str) -> Json:
    return {"SpecialToken": {"id": text, "type_id": 0}}


def sequence(name: str) -> Json:
    return {"Sequence": {"id": name, "type_id": 0}}


def template(*single: Json, pair: tuple[Json, ...] = ()) -> Json:
    return {"type": "TemplateProcessing", "single": list(single), "pair": list(pair)}


def tokenizer(post_processor: Json | None = None) -> Json:
    added = [{"content": text, "id": 10 + number} for number, text in enumerate(TOKENS)]
    return {"added_tokens": added, "post_processor": post_processor}


@pytest.mark.parametrize(
    ("processor", "settings_", "config", "ids", "added"),
    [
        (None, {"bos_token": "<a>", "eos_token": {"content": "<b>"}}, {}, {"bos": 10, "eos": 11}, {}),
        (None, {"eos_token": "<b>"}, {"eos_token_id": 7, "bos_token_id": 3}, {"eos": 11, "bos": 3}, {}),
        (None, {"eos_token": "<nope>"}, {"eos_token_id": 7}, {"eos": 7}, {}),
        (None, {}, {"eos_token_id": [7, 8], "pad_token_id": None}, {}, {}),
        (None, {}, {"text_config": {"eos_token_id": 7}}, {"eos": 7}, {}),
        (None, {"add_bos_token": True}, {}, {}, {"bos": True}),
        (BYTE_LEVEL, {"add_bos_token": True}, {}, {}, {"bos": False, "eos": False}),
        (template(special("<a>"), sequence("A")), {"bos_token": "<a>"}, {}, {"bos": 10}, {"bos": True}),
        (template(special("<a>"), sequence("A")), {}, {}, {"bos": 10, "cls": 10}, {"bos": True}),
        (template(special("<a>"), sequence("A")), {"bos_token": "<b>", "cls_token": "<c>"}, {},
         {"bos": 11, "cls": 12}, {"bos": False}),
        (template(sequence("A"), special("<b>")), {"eos_token": "<b>"}, {}, {"eos": 11}, {"eos": True}),
        (template(sequence("A"), special("<b>")), {"eos_token": "<c>"}, {}, {"eos": 11, "eot": 12}, {"eos": True}),
        (template(sequence("A"), pair=(sequence("A"), special("<c>"), sequence("B"))), {"sep_token": "<c>"}, {},
         {"eos": 12, "sep": 12}, {"sep": True}),
    ],
)  # fmt: skip
def test_special_tokens(
    tmp_path: Path, processor: Json | None, settings_: Json, config: Json, ids: Json, added: Json
) -> None:
    found = special_tokens(tmp_path, tokenizer(processor), {**settings_, "model_max_length": 1}, config)
    assert (found.ids, found.added) == (ids, added)


def test_ids_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    assert special_tokens(tmp_path, None, None, {"eos_token_id": 7, "bos_token_id": 2}, limit=7).ids == {"bos": 2}


@pytest.mark.parametrize(
    ("files", "in_config", "templates"),
    [
        ({"chat_template.jinja": "a\r\nb\rc"}, {}, {"default": "a\nb\nc"}),
        ({"chat_template.jinja": "x"}, {"chat_template": "y"}, {"default": "y"}),
        ({"chat_template.jinja": "x"}, {"chat_template": None}, {}),
        ({"chat_template.json": '{"chat_template": "z"}'}, {}, {"default": "z"}),
        ({"chat_template.jinja": "x", "additional_chat_templates/rag.jinja": "r"}, {}, {"default": "x", "rag": "r"}),
        ({}, {"chat_template": [{"name": "default", "template": "a"}, {"name": "t", "template": "b"}]},
         {"default": "a", "t": "b"}),
    ],
)  # fmt: skip
def test_chat_templates(tmp_path: Path, files: dict[str, str], in_config: Json, templates: Json) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    assert special_tokens(tmp_path, tokenizer(), {"a": 1, **in_config}, {}).templates == templates


def test_more_templates_than_a_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has 101 chat templates"):
        special_tokens(tmp_path, tokenizer(), {"chat_template": {f"t{number}": "" for number in range(101)}}, {})


def test_template_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="is not UTF-8"):
        special_tokens(tmp_path, tokenizer(), {"a": 1}, {})


def split(regex: str, **more: Any) -> Json:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **more}


def steps(*rules: Json) -> Json:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(rules)}}


PLAIN: Json = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLITTING: Json = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
DIGITS: Json = {"type": "Digits", "individual_digits": True}


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (steps(split(QWEN2_SPLIT), PLAIN), "qwen2"),
        (steps(split(QWEN35_SPLIT), PLAIN), "qwen35"),
        (steps(split(LLAMA3_SPLIT), PLAIN), "llama-bpe"),
        (steps(DIGITS, SPLITTING), "smollm"),
        ({"pre_tokenizer": SPLITTING}, "gpt-2"),
    ],
)
def test_pre_tokenizer_is_recognised_by_its_rules(rules: Json, name: str) -> None:
    assert pre_tokenizer(rules, WHERE) == name


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"pre_tokenizer": []},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}},
        {"pre_tokenizer": PLAIN},
        {"pre_tokenizer": {"type": "Whitespace"}},
        steps(split(QWEN2_SPLIT)),
        steps(split(QWEN2_SPLIT), SPLITTING),
        steps(split(QWEN2_SPLIT, behavior="Removed"), PLAIN),
        steps(split(QWEN2_SPLIT, invert=True), PLAIN),
        steps(split(QWEN2_SPLIT + "|x"), PLAIN),
        steps(split(QWEN2_SPLIT), split(QWEN2_SPLIT), PLAIN),
        steps(split(QWEN2_SPLIT), {**PLAIN, "add_prefix_space": True}),
        steps(DIGITS, PLAIN),
    ],
)
def test_pre_tokenizer_that_is_a_little_different_is_not_guessed(rules: Json) -> None:
    with pytest.raises(BadInput, match=r"llama\.cpp's name with --pre"):
        pre_tokenizer(rules, WHERE)


def test_named_pre_tokenizer_wins() -> None:
    assert pre_tokenizer(steps(split(QWEN2_SPLIT), PLAIN), WHERE, "deepseek-r1-qwen") == "deepseek-r1-qwen"


@pytest.mark.parametrize("name", ["", "a b", "Qwen", "x" * 40])
def test_name_that_can_be_no_pre_tokenizer_is_refused(name: str) -> None:
    with pytest.raises(WrongUse):
        pre_tokenizer({}, WHERE, name)


def bpe(*added: Json, size: int = 4120, **settings_: Any) -> list[tuple[str, int]]:
    """Return tokens and types from id 4103 on."""
    found = json.loads(tokenizer_json(MODELS["qwen3"]))
    plain = {"special": False, "normalized": False}
    found["added_tokens"] += [{**plain, "id": 4103 + number, **entry} for number, entry in enumerate(added)]
    vocabulary = read_bpe(found, settings_, size, WHERE, "qwen2")
    return list(zip(vocabulary.tokens, vocabulary.types, strict=True))[4103:]


@pytest.mark.parametrize(
    ("entry", "token"),
    [
        ({"content": "<y>"}, ("<y>", USER_DEFINED)),
        ({"content": "<y>", "special": True}, ("<y>", CONTROL)),
        ({"content": "<|y|>"}, ("<|y|>", CONTROL)),
        ({"content": "\u2581y z"}, (" y z", USER_DEFINED)),
        ({"content": "naïve"}, ("na\ufffdve", USER_DEFINED)),
        ({"content": "naïve", "normalized": True}, ("naïve", USER_DEFINED)),
        ({"content": "日本"}, ("日本", USER_DEFINED)),
    ],
)
def test_added_token(entry: Json, token: tuple[str, int]) -> None:
    assert bpe(entry)[0] == token


def test_rows_without_a_token_are_unused() -> None:
    assert bpe(size=4105) == [("[PAD4103]", UNUSED), ("[PAD4104]", UNUSED)]


@pytest.mark.parametrize(
    ("settings_", "kind"),
    [
        ({"bos_token": "<y>"}, USER_DEFINED),
        ({"bos_token": "<y>", "tokenizer_class": "Qwen2Tokenizer"}, CONTROL),
        ({"bos_token": "<y>", "added_tokens_decoder": {"4103": {"content": "<y>"}}}, CONTROL),
        ({"additional_special_tokens": ["<y>"]}, USER_DEFINED),
        ({"additional_special_tokens": [{"content": "<y>"}], "tokenizer_class": "Qwen2TokenizerFast"}, CONTROL),
    ],
)
def test_role_makes_an_added_token_special_where_transformers_does(settings_: Json, kind: int) -> None:
    assert bpe({"content": "<y>"}, **settings_)[0] == ("<y>", kind)


def test_token_with_two_ids_is_refused() -> None:
    with pytest.raises(BadInput, match="has the ids"):
        bpe({"content": "a"})


@pytest.mark.parametrize(("text", "special_"), [("<|x|>", True), ("<pad>", True), ("<unused9>", True), ("<x>", False)])
def test_looks(text: str, special_: bool) -> None:
    assert looks_special(text) is special_


def test_sentence_piece_types_and_scores() -> None:
    settings_ = {"added_tokens_decoder": {"310": {"content": "\u2581t", "special": False}, "999": {"content": "x"}}}
    found = read_spm(sentence_piece_model(), {"<extra>": 311, "<far>": 999}, settings_, 320, WHERE)
    rows = zip(found.tokens, found.scores, found.types, strict=True)
    by_token = {token.decode(): (score, kind) for token, score, kind in rows}
    assert len(found.tokens) == 320
    assert by_token["<s>"] == (0.0, CONTROL)
    assert by_token["<0x00>"] == (0.0, BYTE)
    assert by_token["\u2581am"] == (0.0, NORMAL)
    assert by_token["<user>"][1] == NORMAL
    assert by_token[" t"] == (-1000.0, USER_DEFINED)
    assert by_token["<extra>"] == (-1000.0, USER_DEFINED)
    assert by_token["[PAD319]"] == (-10000.0, UNUSED)


_MODEL = sentence_piece_model()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, len(_MODEL) - 1), st.binary(min_size=1, max_size=4))
def test_damaged_sentence_piece_model_is_refused_or_harmless(at: int, junk: bytes) -> None:
    try:
        found = read_spm(_MODEL[:at] + junk + _MODEL[at + len(junk) :], {}, {}, 320, WHERE)
    except BadInput:
        return
    assert len(found.tokens) == len(found.scores) == len(found.types) == 320


def random_case(dice: random.Random) -> tuple[Json | None, Json | None, Json]:
    """Return tokenizer.json, tokenizer_config.json and config.json, in every combination that decides something."""

    def token() -> Any:
        text = dice.choice([*TOKENS, "<nope>", None, ""])
        return {"content": text} if text and dice.random() < 0.3 else text

    def marker() -> list[Json]:
        return [special(dice.choice(TOKENS))] if dice.random() < 0.5 else []

    single = [*marker(), sequence("A"), *marker()]
    between = [special(dice.choice(TOKENS)) for _ in range(dice.choice([0, 0, 1, 2, 3]))]
    pair = (*single[: len(single) - 1], sequence("A"), *between, sequence(dice.choice("BBA")), *marker())
    rule = template(*single, pair=pair)
    chain = {"type": "Sequence", "processors": [BYTE_LEVEL, rule]}
    found = tokenizer(dice.choice([None, BYTE_LEVEL, rule, chain]))
    roles = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    named: Json = {f"{role}_token": token() for role in roles if dice.random() < 0.6}
    named |= {f"add_{role}_token": dice.choice([True, False]) for role in roles[:2] if dice.random() < 0.4}
    config = {f"{role}_token_id": dice.choice([0, 1, [1], None]) for role in roles if dice.random() < 0.4}
    return found if dice.random() < 0.9 else None, named if dice.random() < 0.9 else None, config


THEIRS = """
import json, logging, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
logging.disable(logging.CRITICAL)
import gguf
for folder in sorted(Path(sys.argv[2]).iterdir()):
    found = gguf.SpecialVocab(folder)
    print(json.dumps([list(found.special_token_ids.items()), list(found.add_special_token.items())]))
"""


@pytest.mark.slow
@pytest.mark.torch
def test_special_tokens_are_those_of_llama_cpp(script: Path, tmp_path: Path) -> None:
    dice = random.Random(3)
    cases = [random_case(dice) for _ in range(1000)]
    names = ("tokenizer.json", "tokenizer_config.json", "config.json")
    for number, case in enumerate(cases):
        folder = tmp_path / f"{number:04d}"
        folder.mkdir()
        for name, value in zip(names, case, strict=True):
            if value is not None:
                (folder / name).write_text(json.dumps(value), encoding="utf-8")
    command = [sys.executable, "-c", THEIRS, str(script.parent / "gguf-py"), str(tmp_path)]
    lines = subprocess.check_output(command, text=True).splitlines()
    for number, (line, case) in enumerate(zip(lines, cases, strict=True)):
        ours = special_tokens(tmp_path / f"{number:04d}", *case)
        assert [[list(pair) for pair in side.items()] for side in (ours.ids, ours.added)] == json.loads(line), case

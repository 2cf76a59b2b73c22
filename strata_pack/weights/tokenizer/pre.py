"""Recognises the pre-tokenizer of a tokenizer.json by its rules and returns llama.cpp's name of it, without guessing.

llama.cpp's converter encodes a text and looks up the hash of the ids. This module compares the rules in the file
instead: the same regular expression in the same place is the same pre-tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput, WrongUse

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"

_BY_SPLIT: Mapping[str, str] = {
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES: "qwen2",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES: "qwen35",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES: "llama-bpe",
}
"""The expression of the one Split rule before ByteLevel, from the tokenizer.json of Qwen3, Qwen3.5 and Llama 3."""

_SAME_RULES: Mapping[str, str] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), "llama-bpe"),
    **{name: name for name in ("qwen2", "qwen35", "gpt-2")},
    **dict.fromkeys(("smollm", "starcoder", "refact"), "smollm"),
    **{name: name for name in ("falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3", "bloom", "viking", "tekken")},
    **{name: name for name in ("gpt-4o", "chameleon")},
}
"""For names of llama.cpp whose rules are sure, the recognised name of the same rules, or the name itself. Other names
are of one model each, whose rules may be among the recognised ones. Source: ``llama-vocab.cpp`` of llama.cpp."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")


def pre_tokenizer(tokenizer: Mapping[str, Any], where: Path, named: str | None = None) -> str:
    """Return llama.cpp's name of the pre-tokenizer: ``named`` if given, else by the rules.

    ``BadInput`` if the rules are unknown, ``WrongUse`` if ``named`` is not a possible name.
    """
    if named is not None:
        if not _NAME.fullmatch(named):
            raise WrongUse("is not a name of a pre-tokenizer", where=f"--pre {named}", remedy="use llama.cpp's name")
        return named
    found = _recognise(tokenizer.get("pre_tokenizer"))
    if found is None:
        raise BadInput(
            "the pre-tokenizer is not a known one",
            where=where,
            remedy=f"give llama.cpp's name with --pre (recognised by their rules: {', '.join(_known())})",
        )
    return found


def contradicted_pre(tokenizer: Mapping[str, Any], named: str) -> str | None:
    """Return llama.cpp's name of a tokenizer.json's pre-tokenizer if its rules are surely not those of ``named``."""
    found = _recognise(tokenizer.get("pre_tokenizer"))
    meant = _SAME_RULES.get(named)
    return None if found is None or meant is None or found == meant else found


def _known() -> tuple[str, ...]:
    return (*_BY_SPLIT.values(), "smollm", "gpt-2")


def _recognise(rules: Any) -> str | None:
    if not isinstance(rules, dict):
        return None
    steps = rules.get("pretokenizers") if rules.get("type") == "Sequence" else [rules]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps) or not steps:
        return None
    *first, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    byte_level_splits = last.get("use_regex", True)
    if not first:
        return "gpt-2" if byte_level_splits else None
    if len(first) > 1:
        return None
    kind = first[0].get("type")
    if kind == "Digits" and first[0].get("individual_digits") and byte_level_splits:
        return "smollm"
    plain = kind == "Split" and first[0].get("behavior") == "Isolated" and not first[0].get("invert")
    pattern = first[0].get("pattern")
    if plain and not byte_level_splits and isinstance(pattern, dict):
        return _BY_SPLIT.get(str(pattern.get("Regex")))
    return None

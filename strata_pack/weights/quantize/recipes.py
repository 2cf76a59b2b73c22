"""Reads recipes: a base preset and ordered rules that give certain tensors another type.

A recipe is a TOML file, command-line flags, or both (flags come first). The first rule that matches a tensor determines
its type; all other tensors get the type of the base preset.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import read_bytes
from strata_pack.llama.ggml import QUANTIZABLE
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.suggest import hint
from strata_pack.weights.quantize.presets import Preset, find_preset

MAX_RECIPE = 1 << 20
"""Maximum bytes of a recipe file."""

_LAYER = re.compile(r"blk\.(\d+)\.")
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:(-)\s*(\d{1,6})?)?\s*")
_TYPES = {type.name: type for type in sorted(QUANTIZABLE)}
_TOP_KEYS = frozenset({"base", "output", "embedding", "leave_output", "pure", "rule"})
_RULE_KEYS = frozenset({"tensors", "layers", "type"})


@dataclass(frozen=True)
class TypeRule:
    """Tensors whose name contains a match of ``pattern``, in the given layers, get ``type``."""

    pattern: re.Pattern[str]
    type: Q
    layers: tuple[tuple[int, int | None], ...] = ()
    """Inclusive ranges of block numbers, ``None`` for no upper end; empty for all tensors, also outside blocks."""
    origin: str = ""
    """The user's spelling, for messages."""

    def matches(self, name: str) -> bool:
        """Return whether the rule matches the tensor ``name``."""
        if self.pattern.search(name) is None:
            return False
        if not self.layers:
            return True
        found = _LAYER.match(name)
        return found is not None and any(
            low <= int(found[1]) and (high is None or int(found[1]) <= high) for low, high in self.layers
        )


@dataclass(frozen=True)
class Recipe:
    """Everything that determines tensor types."""

    base: Preset
    rules: tuple[TypeRule, ...] = ()
    output: Q | None = None
    """Type of the output matrix (and of a tied embedding)."""
    embedding: Q | None = None
    leave_output: bool = False
    """Whether the output matrix keeps its type."""
    pure: bool = False
    """Whether every matrix gets the base type, without the preset's rules."""
    text: str | None = None
    """The recipe file's text, for the manifest."""
    path: Path | None = None
    """The path of the recipe file."""

    @property
    def label(self) -> str:
        """The base preset's name, with a plus if the recipe differs from it."""
        changed = self.rules or self.output or self.embedding or self.leave_output or self.pure
        return f"{self.base.name}+" if changed else self.base.name


def parse_type(text: str, where: str) -> Q:
    """Return the type called ``text`` (any case); ``WrongUse`` lists the types."""
    type = _TYPES.get(text.strip().upper())
    if type is None:
        remedy = f"choose one of {', '.join(_TYPES)}"
        raise WrongUse(f"there is no type {text!r}{hint(text, _TYPES)}", where=where, remedy=remedy)
    return type


def parse_layers(text: str, where: str) -> tuple[tuple[int, int | None], ...]:
    """Return the ranges in ``text``, such as ``"0-3,7,40-"``; ``WrongUse`` for another form."""
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise WrongUse(f"{part.strip()!r} is not a layer range", where=where, remedy="write for example 0-3,7,40-")
        low = int(match[1])
        high = low if match[2] is None else None if match[3] is None else int(match[3])
        if high is not None and high < low:
            raise WrongUse(f"the layer range {part.strip()} ends before it begins", where=where)
        ranges.append((low, high))
    return tuple(ranges)


def _compile(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise WrongUse(f"{pattern!r} is not a regular expression ({error})", where=where) from None


def parse_tensor_type(text: str) -> TypeRule:
    """Return the rule in ``REGEX=TYPE``, the form of ``--tensor-type``; ``WrongUse`` for another form."""
    where = f"--tensor-type {text}"
    pattern, equals, type = text.rpartition("=")
    if not equals or not pattern:
        raise WrongUse("needs the form REGEX=TYPE", where=where, remedy="for example 'ffn_down=Q6_K'")
    return TypeRule(_compile(pattern, where), parse_type(type, where), origin=where)


def recipe_from_options(base: Preset, options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a manifest's options (see ``recipe_options``); raises as ``read_recipe``."""
    where = "recipe/options"
    try:
        rules = tuple(
            TypeRule(
                _compile(rule["tensors"], where),
                parse_type(rule["type"], where),
                tuple((int(low), None if high is None else int(high)) for low, high in rule["layers"]),
            )
            for rule in options.get("rules", [])
        )
        return Recipe(
            base=base,
            rules=rules,
            output=_type(options, "output", where),
            embedding=_type(options, "embedding", where),
            leave_output=_flag(options, "leave_output", where),
            pure=_flag(options, "pure", where),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"is malformed ({error})", where=where) from None


def recipe_from_text(text: str, where: str = "recipe/text") -> Recipe:
    """Return the recipe in a file's text; raises as ``read_recipe``."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"is no TOML: {error}", where=where) from None
    return _recipe_from_table(table, where, text)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file; ``BadInput`` or ``WrongUse`` name the invalid key."""
    raw = read_bytes(path, MAX_RECIPE)
    try:
        text = raw.decode("utf-8")
        table = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"is no TOML: {error}", where=path) from None
    return replace(_recipe_from_table(table, str(path), text), path=path)


def _recipe_from_table(table: Mapping[str, Any], where: str, text: str) -> Recipe:
    _refuse_unknown(table, _TOP_KEYS, where)
    if "base" not in table:
        raise BadInput("has no base preset", where=where, remedy='begin with: base = "Q4_K_M"')
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise BadInput("rule must be a list of tables", where=where, remedy="write each rule below a line [[rule]]")
    return Recipe(
        base=find_preset(_string(table, "base", where)),
        rules=tuple(_rule(rule, f"{where}, rule {number}") for number, rule in enumerate(rules, 1)),
        output=_type(table, "output", where),
        embedding=_type(table, "embedding", where),
        leave_output=_flag(table, "leave_output", where),
        pure=_flag(table, "pure", where),
        text=text,
    )


def _rule(table: Mapping[str, Any], where: str) -> TypeRule:
    _refuse_unknown(table, _RULE_KEYS, where)
    missing = [key for key in ("tensors", "type") if key not in table]
    if missing:
        raise BadInput(f"has no {missing[0]}", where=where)
    layers = parse_layers(_string(table, "layers", where), where) if "layers" in table else ()
    return TypeRule(
        pattern=_compile(_string(table, "tensors", where), where),
        type=parse_type(_string(table, "type", where), where),
        layers=layers,
        origin=where,
    )


def _refuse_unknown(table: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise BadInput(f"has the unknown key {unknown[0]!r}", where=where, remedy=f"known are {sorted(known)}")


def _string(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table[key]
    if not isinstance(value, str):
        raise BadInput(f"{key} must be a string", where=where)
    return value


def _type(table: Mapping[str, Any], key: str, where: str) -> Q | None:
    return parse_type(_string(table, key, where), where) if key in table else None


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(f"{key} must be true or false", where=where)
    return value


def make_recipe(
    preset: str | None = None,
    recipe_file: Path | None = None,
    *,
    tensor_types: Sequence[str] = (),
    output: str | None = None,
    embedding: str | None = None,
    leave_output: bool = False,
    pure: bool = False,
) -> Recipe:
    """Build a recipe from the command line's options; flags precede the file's rules.

    ``preset`` replaces the file's base; with neither the base is Q4_K_M. Raises ``WrongUse`` or ``BadInput``.
    """
    recipe = Recipe(find_preset(preset or "Q4_K_M")) if recipe_file is None else read_recipe(recipe_file)
    if preset is not None:
        recipe = replace(recipe, base=find_preset(preset))
    if leave_output and output is not None:
        raise WrongUse("--leave-output-tensor and --output-tensor-type exclude each other")
    return replace(
        recipe,
        rules=(*map(parse_tensor_type, tensor_types), *recipe.rules),
        output=recipe.output if output is None else parse_type(output, "--output-tensor-type"),
        embedding=recipe.embedding if embedding is None else parse_type(embedding, "--token-embedding-type"),
        leave_output=recipe.leave_output or leave_output,
        pure=recipe.pure or pure,
    )

"""Finds the special tokens (begin, end, pad) and those added automatically, like llama.cpp's converter.

tokenizer_config.json names the tokens, the post-processor of tokenizer.json determines which of them are added, and
config.json has the ids of the others. The chat templates are read too, because they are in the same files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes
from strata_pack.weights.tokenizer.chat_templates import chat_templates

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TEMPLATE_LIMIT = 4 << 20


@dataclass(frozen=True)
class SpecialTokens:
    """``ids`` and ``added`` by role, in the order of the GGUF; the chat ``templates`` by name."""

    ids: Mapping[str, int]
    added: Mapping[str, bool]
    templates: Mapping[str, str]


def special_tokens(
    folder: Path,
    tokenizer: Mapping[str, Any] | None,
    tokenizer_config: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    limit: int | None = None,
) -> SpecialTokens:
    """Return the special tokens of a checkpoint. ``limit``: ids from this one on are out of range and left out.

    ``BadInput`` for another post-processor than ByteLevel and TemplateProcessing.
    """
    names = dict(tokenizer_config) if tokenizer_config else {}
    roles = list(ROLES)
    added: dict[str, bool] = {}
    if tokenizer:
        names.update(_stand_ins(names))
        for step in _steps(tokenizer.get("post_processor"), folder / "tokenizer.json"):
            if step["type"] == "ByteLevel":
                added.setdefault("bos", False)
                added.setdefault("eos", False)
            else:
                _read_template(step, names, added, roles, known=bool(tokenizer_config))
    ids: dict[str, int] = {}
    if tokenizer_config:
        contents = {
            entry.get("content"): entry.get("id") for entry in reversed((tokenizer or {}).get("added_tokens", []))
        }
        for role in roles:
            flag = names.get(f"add_{role}_token")
            if isinstance(flag, bool):
                added.setdefault(role, flag)
            _set(ids, role, contents.get(token_text(names.get(f"{role}_token"))), limit)
    text = config.get("text_config")
    nested = text if isinstance(text, dict) else {}
    for role in roles:
        key = f"{role}_token_id"
        value = config.get(key)
        _set(ids, role, nested.get(key) if value is None else value, limit)
    templates = _templates(folder, tokenizer_config) if tokenizer_config else {}
    return SpecialTokens(ids, added, templates)


def token_text(entry: Any) -> str | None:
    """Return the text of a token in tokenizer_config.json: a string, or an object with ``content``."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _stand_ins(names: Mapping[str, Any]) -> dict[str, Any]:
    pairs = {"bos_token": "cls_token", "eos_token": "sep_token"}
    return {key: names[other] for key, other in pairs.items() if not names.get(key) and names.get(other)}


def _steps(processor: Any, where: Path) -> list[dict[str, Any]]:
    if not processor:
        return []
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else [processor]
    for step in steps:
        kind = step.get("type") if isinstance(step, dict) else None
        if kind not in ("ByteLevel", "TemplateProcessing"):
            raise BadInput(f"the post-processor {kind!r} is not supported", where=where)
    return list(steps)


def _special(step: Any) -> str | None:
    found = step.get("SpecialToken", {}).get("id") if isinstance(step, dict) else None
    return found if isinstance(found, str) and found else None


def _read_template(
    step: Mapping[str, Any], names: dict[str, Any], added: dict[str, bool], roles: list[str], *, known: bool
) -> None:
    """Read from a TemplateProcessing the tokens before and after a single sequence.

    ``known``: there is a tokenizer_config.json. If the template contradicts it, the template takes precedence, and a
    contradicted end of sequence becomes the end of turn.
    """
    single = step.get("single") or []
    first = _special(single[0]) if len(single) > 1 else None
    last = _special(single[-1]) if len(single) > 1 else None
    if first:
        if known and first not in (names.get("bos_token"), names.get("cls_token")):
            for key in ("bos_token", "cls_token"):
                if not names.get(key):
                    names[key] = first
        added["bos"] = not known or first in (names.get("bos_token"), names.get("cls_token"))
    if last:
        if known and last != names.get("eos_token"):
            spare = next((role for role in ("eot", "eom") if role not in roles), None)
            if spare:
                roles.append(spare)
                names[f"{spare}_token"] = names.get("eos_token")
        names["eos_token"] = last
        added["eos"] = True
    _read_pair(step.get("pair") or [], first, last, names, added, known=known)


def _read_pair(
    pair: Sequence[Any],
    first: str | None,
    last: str | None,
    names: dict[str, Any],
    added: dict[str, bool],
    *,
    known: bool,
) -> None:
    """Read from the template of two sequences the tokens between them."""
    inner = list(pair)
    if inner and first and _special(inner[0]) == first:
        inner = inner[1:]
    if inner and last and _special(inner[-1]) == last:
        inner = inner[:-1]
    ends = [step.get("Sequence", {}).get("id") for step in (inner[:1] + inner[-1:])]
    between = inner[1:-1]
    if ends != ["A", "B"] or not between:
        return
    separators = (names.get("sep_token"), names.get("eos_token"))
    add = _special(between[0]) in separators and _special(between[0]) is not None and not last
    if len(between) == 2 and _special(between[1]) is not None:
        add = add or _special(between[1]) in separators
    added["sep"] = add
    if add and known and not names.get("sep_token"):
        names["sep_token"] = names.get("eos_token")


def _set(ids: dict[str, int], role: str, value: Any, limit: int | None) -> None:
    if type(value) is int and value >= 0 and role not in ids and (limit is None or value < limit):
        ids[role] = value


def _templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found = tokenizer_config["chat_template"] if "chat_template" in tokenizer_config else _template_file(folder)
    return chat_templates(found, folder)


def _template_file(folder: Path) -> Any:
    jinja, wrapped = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.is_file():
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        if not more:
            return _text(jinja)
        named = [{"name": "default", "template": _text(jinja)}]
        return named + [{"name": path.stem, "template": _text(path)} for path in more]
    if wrapped.is_file():
        try:
            return json.loads(_text(wrapped)).get("chat_template")
        except (ValueError, AttributeError) as error:
            raise BadInput(f"is not a JSON object ({error})", where=wrapped) from None
    return None


def _text(path: Path) -> str:
    try:
        text = read_bytes(path, _TEMPLATE_LIMIT).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("is not UTF-8", where=path) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")

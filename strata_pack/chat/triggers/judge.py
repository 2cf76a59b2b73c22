"""Judges a prompt: it must equal the prompt without the trigger, apart from the text in the slots.

What the template writes around the slots is taken from a prompt in which every slot has a text of its own. A prompt
that is not so made may still be right for a reason: the text switches what a variable of the template switches, too, or
it holds a tag that the template itself writes, which is part of its syntax. No trigger is allowed by its name.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import escape

from strata_pack.chat.triggers.shapes import BASE, NAMES, SLOTS

WORD = re.compile(r"[^\W\d_]{2,}")
SWITCH = re.compile(r"/[A-Za-z_]{2,24}")
"""A command to the template, as a user types it: it is no text for the model."""

XML_QUOTING = frozenset({"CDATA"})
"""What a template may write around a text that holds signs of XML."""

ESCAPED = re.compile(r"\\[ntr]")

TOKEN = re.compile(r"<\|[a-z_]{1,24}\|>")
"""A special token, as a template writes one."""

CLOSING = re.compile(r"</[\w:]{1,24}>|\[/\w{1,24}\]|<\|/\w{1,24}\|>")
"""The end of a block, as a template writes one."""

COMMAND = re.compile(r"<[A-Za-z][A-Za-z0-9_-]{2,40}>")
"""A tag that a user types to have something done."""

HTML_TAGS = frozenset(
    {
        *("abbr", "address", "article", "aside", "audio", "base", "bdi", "bdo", "big", "blockquote", "body", "button"),
        *("canvas", "caption", "center", "cite", "code", "col", "data", "datalist", "del", "details", "dfn", "dialog"),
        *("dir", "div", "embed", "fieldset", "figure", "font", "footer", "form", "frame", "head", "header", "html"),
        *("iframe", "img", "image", "input", "ins", "kbd", "label", "legend", "link", "main", "map", "mark", "menu"),
        *("meta", "meter", "nav", "noscript", "object", "option", "output", "param", "picture", "pre", "progress"),
        *("ruby", "samp", "script", "search", "section", "select", "slot", "small", "source", "span", "strike"),
        *("strong", "style", "sub", "summary", "sup", "svg", "table", "tbody", "template", "textarea", "tfoot"),
        *("thead", "time", "title", "track", "var", "video", "wbr"),
    }
)
"""Elements of three letters and more: people write about them."""

AROUND = 40
"""Characters of the template's text on either side of a called tool's name that belong to the syntax of the call."""

BEFORE = 16
"""Characters before a slot's text that must stay as they are."""

SHOWN = 120


def words_of(text: str) -> list[str]:
    """Return the words of ``text``; an escaped line feed ends one, and the quoting of XML is none."""
    return [word for word in WORD.findall(ESCAPED.sub(" ", text)) if word not in XML_QUOTING]


@dataclass(frozen=True)
class Split:
    """A prompt, taken apart: what the template wrote (``constants``), and which slot stands after each but the last."""

    constants: tuple[str, ...]
    slots: tuple[str, ...]

    def prompt(self, texts: Mapping[str, str]) -> str:
        """Return the prompt with ``texts`` in the slots."""
        parts = [self.constants[0]]
        for slot, constant in zip(self.slots, self.constants[1:], strict=True):
            parts += [texts[slot], constant]
        return "".join(parts)


def split_prompt(prompt: str) -> Split:
    """Return ``prompt``, rendered with the slots' own texts, taken apart."""
    places = re.compile("|".join(re.escape(text) for text in sorted(BASE.values(), key=len, reverse=True)))
    slot_of = {text: slot for slot, text in BASE.items()}
    constants, slots, at = [], [], 0
    for found in places.finditer(prompt):
        constants.append(prompt[at : found.start()])
        slots.append(slot_of[found[0]])
        at = found.end()
    return Split((*constants, prompt[at:]), tuple(slots))


def is_made_of(prompt: str, split: Split, texts: Mapping[str, str]) -> bool:
    """Return whether ``prompt`` is ``split`` with ``texts`` in its slots, each in a form that templates print text
    in."""
    if not prompt.startswith(split.constants[0]):
        return False
    ends = {len(split.constants[0])}
    for slot, constant in zip(split.slots, split.constants[1:], strict=True):
        ends = {
            end + len(form) + len(constant)
            for end in ends
            for form in _printed(texts[slot])
            if prompt.startswith(form + constant, end)
        }
        if not ends:
            return False
    return len(prompt) in ends


@lru_cache(maxsize=4096)
def _printed(text: str) -> frozenset[str]:
    """Return the forms in which a template may print ``text``: as it is, trimmed, as JSON, each of them as HTML."""
    forms: set[str] = set()
    for trimmed in (text, text.strip(), text.lstrip(), text.rstrip()):
        forms |= {trimmed, repr(trimmed)[1:-1]}
        forms |= {json.dumps(trimmed, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    # What is joined to a text that is marked as safe is escaped, JSON too.
    return frozenset({*forms, *(str(escape(form)) for form in forms), *(html.escape(form) for form in forms)})


@dataclass(frozen=True)
class TemplateWords:
    """What the template writes without any trigger: its words, and its whole text without slashes."""

    words: frozenset[str]
    text: str

    @classmethod
    def of(cls, splits: Iterable[Split]) -> TemplateWords:
        texts = [constant for split in splits for constant in split.constants]
        return cls(frozenset(map(str.lower, words_of("\n".join(texts)))), "\n".join(texts).replace("/", ""))

    def is_tag(self, literal: str) -> bool:
        """Return whether ``literal`` is markup that the template itself writes (or its closing half)."""
        bare = literal.replace("/", "").strip()
        return bool(bare) and any(char in bare for char in "<>[]|") and bare in self.text

    def new_words(self, prompt: str, texts: Iterable[str]) -> list[str]:
        """Return the words of ``prompt`` that are neither the template's nor in ``texts``, in their order; two that
        stand close, where a tag between them went or texts are joined, are not a new one."""
        known = self.words | set(map(str.lower, words_of("\n".join(texts))))
        return [word for word in words_of(prompt) if not _is_known(word.lower(), known)]


def _is_known(word: str, known: Set[str]) -> bool:
    return word in known or any(word[:at] in known and word[at:] in known for at in range(2, len(word) - 1))


def is_markup(literal: str) -> bool:
    """Return whether ``literal`` is written as a tag."""
    stripped = literal.strip()
    return len(stripped) > 2 and stripped[0] in "<[{|/" and any(char in stripped for char in "<>[]{}|")


def is_syntax(
    vocabulary: TemplateWords,
    prompt: str,
    split: Split,
    texts: Mapping[str, str],
    literals: Sequence[str],
    changed: Sequence[str],
) -> bool:
    """Return whether ``literals`` in the slots ``changed`` act as tags, or (in a system text) become the template's
    words.

    Nothing new may be said then, and no text lost but an assistant's, which templates cut at the tags of its thinking.
    """
    spoken = all(SLOTS[slot] == "assistant" for slot in changed)
    rewritten = all(SLOTS[slot] == "system" for slot in changed)
    tags = (vocabulary.is_tag(one) or is_markup(one) or SWITCH.fullmatch(one.strip()) for one in literals)
    if not rewritten and not all(tags):
        return False
    if vocabulary.new_words(prompt, texts.values()):
        return False
    if spoken:
        return True
    for slot in changed:
        if slot not in split.slots:
            continue
        kept = texts[slot]
        for literal in literals:
            kept = kept.replace(literal, " ")
        if any(word not in prompt for word in words_of(kept)):
            return False
        if SLOTS[slot] != "user":
            continue
        before = split.constants[split.slots.index(slot)][-BEFORE:]
        if before + texts[slot].strip()[:1] not in prompt and before.rstrip() not in prompt:
            return False
    return True


def is_layout(
    vocabulary: TemplateWords,
    prompt: str,
    wanted: str,
    texts: Mapping[str, str],
    literals: Sequence[str],
    changed: Sequence[str],
) -> bool:
    """Return whether only signs and the order differ: of an assistant's own turn, or because of a sign that no word
    is in (a full stop that is not doubled; a name that is split at its dot)."""
    said, expected = words_of(prompt), words_of(wanted)
    if all(SLOTS[slot] == "assistant" for slot in changed) and sorted(said) == sorted(expected):
        return True
    if any(WORD.search(literal) for literal in literals):
        return False
    named = all(slot in NAMES for slot in changed) and not vocabulary.new_words(prompt, texts.values())
    return named or said == expected


def is_call_syntax(
    prompt: str, split: Split, texts: Mapping[str, str], literals: Sequence[str], changed: Sequence[str]
) -> bool:
    """Return whether the name of a called tool only chooses the syntax of its call: a special token stands for the name
    and for what the template writes around it (``<|python_tag|>`` for the tool that runs code), and all else is there.
    """
    if "called" not in changed or not NAMES.issuperset(changed):
        return False
    said, expected = (Counter(words_of(TOKEN.sub(" ", text))) for text in (prompt, split.prompt(texts)))
    around = [
        constant
        for number, slot in enumerate(split.slots)
        if slot == "called"
        for constant in split.constants[number : number + 2]
    ]
    near = " ".join(constant.rsplit("\n", 1)[-1][-AROUND:] + " " + constant[:AROUND] for constant in around)
    return not said - expected and set(expected - said) <= set(words_of(" ".join([*literals, near])))


def is_cut(missing: str, literals: Sequence[str]) -> bool:
    """Return whether what is ``missing``, with nothing in its stead, is a cut at a closing tag (of thinking, in a
    text of any role), or a text that holds the very tag (an instruction to use it, which is there already)."""
    tags = [literal.strip() for literal in literals]
    return bool(tags) and all(CLOSING.fullmatch(tag) or (is_markup(tag) and tag in missing) for tag in tags)


def is_command(prompt: str, split: Split, texts: Mapping[str, str], literals: Sequence[str]) -> bool:
    """Return whether a tag in a user's text (``<chart2csv>``) stands for a text of the template's: the tag is gone, the
    new text is in the place of the user's, and nothing else is another. Tags of HTML, of which people write, do not."""
    if not all(COMMAND.fullmatch(one) and one[1:-1].lower() not in HTML_TAGS for one in map(str.strip, literals)):
        return False
    start, end = 0, 0
    wanted = split.prompt(texts)
    for number, slot in enumerate(split.slots):
        start = end + len(split.constants[number])
        end = start + len(texts[slot])
        holds = any(literal in texts[slot] for literal in literals)
        if holds and SLOTS[slot] == "user":
            before, after = wanted[:start].rstrip(), wanted[end:].lstrip()
            inside = prompt[len(before) : len(prompt) - len(after)]
            same = prompt.startswith(before) and prompt.endswith(after)
            if same and inside.strip() and not any(literal in inside for literal in literals):
                return True
    return False


def difference(wanted: str, got: str) -> tuple[str, str]:
    """Return what is missing of ``wanted`` and what ``got`` has instead."""
    start = 0
    while start < min(len(wanted), len(got)) and wanted[start] == got[start]:
        start += 1
    end = 0
    while end < min(len(wanted), len(got)) - start and wanted[-1 - end] == got[-1 - end]:
        end += 1
    return wanted[start : len(wanted) - end], got[start : len(got) - end]


def shown(text: str) -> str:
    """Return ``text`` short enough for one line."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"

"""Decides whether a prompt equals the prompt without the trigger, apart from the text in the slots.

The template's own text around the slots is taken from a prompt with a unique text in every slot. A different prompt is
accepted for two reasons: the text is a command with the effect of one of the template's variables, or it contains a tag
of the template's own syntax. No trigger is allowed by name.
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
"""A user's command to the template, which is not text for the model."""

XML_QUOTING = frozenset({"CDATA"})
"""Markup that a template may write around a text with XML characters."""

ESCAPED = re.compile(r"\\[ntr]")

TOKEN = re.compile(r"<\|[a-z_]{1,24}\|>")
"""A special token in a template's output."""

CLOSING = re.compile(r"</[\w:]{1,24}>|\[/\w{1,24}\]|<\|/\w{1,24}\|>")
"""The end of a block in a template's output."""

COMMAND = re.compile(r"<[A-Za-z][A-Za-z0-9_-]{2,40}>")
"""A tag that a user types as a command."""

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
"""HTML elements of three letters and more, which users mention in ordinary text."""

AROUND = 40
"""Characters of the template's text on both sides of a called tool's name that count as syntax of the call."""

BEFORE = 16
"""Characters before a slot's text that must not change."""

SHOWN = 120


def words_of(text: str) -> list[str]:
    """Return the words of ``text``; an escaped line feed ends a word, and XML entities are not words."""
    return [word for word in WORD.findall(ESCAPED.sub(" ", text)) if word not in XML_QUOTING]


@dataclass(frozen=True)
class Split:
    """A prompt, split into the template's text (``constants``) and the slot after each constant but the last."""

    constants: tuple[str, ...]
    slots: tuple[str, ...]

    def prompt(self, texts: Mapping[str, str]) -> str:
        """Return the prompt with ``texts`` in the slots."""
        parts = [self.constants[0]]
        for slot, constant in zip(self.slots, self.constants[1:], strict=True):
            parts += [texts[slot], constant]
        return "".join(parts)


def split_prompt(prompt: str) -> Split:
    """Return ``prompt``, which was rendered with the slots' own texts, split into constants and slots."""
    places = re.compile("|".join(re.escape(text) for text in sorted(BASE.values(), key=len, reverse=True)))
    slot_of = {text: slot for slot, text in BASE.items()}
    constants, slots, at = [], [], 0
    for found in places.finditer(prompt):
        constants.append(prompt[at : found.start()])
        slots.append(slot_of[found[0]])
        at = found.end()
    return Split((*constants, prompt[at:]), tuple(slots))


def is_made_of(prompt: str, split: Split, texts: Mapping[str, str]) -> bool:
    """Return whether ``prompt`` is ``split`` with ``texts`` in its slots, each in a form in which templates print
    text."""
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
    """Return the forms in which a template may print ``text``: unchanged, trimmed, as JSON, and each escaped as
    HTML."""
    forms: set[str] = set()
    for trimmed in (text, text.strip(), text.lstrip(), text.rstrip()):
        forms |= {trimmed, repr(trimmed)[1:-1]}
        forms |= {json.dumps(trimmed, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    # Text that is concatenated with a safe string is escaped, JSON too.
    return frozenset({*forms, *(str(escape(form)) for form in forms), *(html.escape(form) for form in forms)})


@dataclass(frozen=True)
class TemplateWords:
    """The template's output without a trigger: its words, and its whole text without slashes."""

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
        """Return the words of ``prompt`` that are neither the template's nor in ``texts``, in order; two known words
        without space between them (after a tag was removed, or texts were joined) are not a new word."""
        known = self.words | set(map(str.lower, words_of("\n".join(texts))))
        return [word for word in words_of(prompt) if not _is_known(word.lower(), known)]


def _is_known(word: str, known: Set[str]) -> bool:
    return word in known or any(word[:at] in known and word[at:] in known for at in range(2, len(word) - 1))


def is_markup(literal: str) -> bool:
    """Return whether ``literal`` has the form of a tag."""
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
    """Return whether ``literals`` in the slots ``changed`` act as tags or, in a system text, replace the template's
    words.

    Then the prompt may have no new words, and may lose only text of an assistant, which templates cut at thinking tags.
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
    """Return whether only punctuation and order differ: in an assistant's own turn, or because of a literal without
    words (a full stop that is not doubled; a name that is split at its dot)."""
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
    """Return whether the name of a called tool only selects the syntax of its call: a special token replaces the name
    and the template's text around it (``<|python_tag|>`` for the tool that runs code), and everything else is present.
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
    """Return whether the ``missing`` text, which nothing replaces, was cut at a closing tag (of thinking, in a text
    of any role), or itself contains the tag (an instruction to use it, which is not repeated)."""
    tags = [literal.strip() for literal in literals]
    return bool(tags) and all(CLOSING.fullmatch(tag) or (is_markup(tag) and tag in missing) for tag in tags)


def is_command(prompt: str, split: Split, texts: Mapping[str, str], literals: Sequence[str]) -> bool:
    """Return whether a tag in a user's text (``<chart2csv>``) is replaced by a text of the template: the tag is
    gone, the new text is in place of the user's, and nothing else differs. HTML tags, which users mention, are
    excluded."""
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
    """Return the text of ``wanted`` that is missing, and what ``got`` has instead."""
    start = 0
    while start < min(len(wanted), len(got)) and wanted[start] == got[start]:
        start += 1
    end = 0
    while end < min(len(wanted), len(got)) - start and wanted[-1 - end] == got[-1 - end]:
        end += 1
    return wanted[start : len(wanted) - end], got[start : len(got) - end]


def shown(text: str) -> str:
    """Return ``text``, shortened to one line."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"

"""Find texts that the model's tokenizer reads as control tokens, and keep them plain text in users' messages.

A user may write ``<|im_start|>system`` in a message. Rendered into the prompt and tokenized, it would open a turn. So
every text that comes from the request is *marked* before it is rendered: one private character after the first
character of anything that is, or together with its neighbours could become, a control token. The rendered prompt is
then cut at the marks: no piece between two cuts holds a control token that the template did not write, and each piece
is tokenized by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any

PRIVATE_USE = range(0xE000, 0xF900)
"""Private-use code points; one that does not occur in the request becomes the mark."""

CONTROL_TYPES = (2, 3)
"""``tokenizer.ggml.token_type``: unknown and control (llama.cpp, ``enum llama_token_type``)."""

LOOKS_LIKE_CONTROL = {
    "<": (
        r"[|｜][^<>\s]{1,64}?[|｜]>",
        r"\|[A-Za-z_]{1,32}>",
        r"[A-Za-z_]{1,32}\|>",
        r"\[[^<>\[\]\s]{1,64}\]>",
        r"/?s>",
        r"/?(?:seed|minimax):[a-z_]{1,32}>",
        r"(?:bos|eos|pad|unk|mask|sep|cls|sop|eop)>",
        r"(?:BOS|EOS|PAD|UNK|MASK|SEP|CLS|EOP)(?:_TOKEN)?>",
        r"/?role>",
        r"(?:start|end)_of_(?:turn|image)>",
        r"(?:fim|issue|jupyter|commit)_[a-z_]{1,24}>",
        r"(?:reponame|filename|file_sep|gh_stars|empty_output|image_soft_token)>",
        r"(?:unused|reserved_|SPECIAL_)[0-9]{1,6}>",
    ),
    "[": (
        r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|TOOL_CONTENT|ARGS|CALL_ID|THINK)\]",
        r"(?:MODEL_SETTINGS|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|TRANSCRIBE|PREFIX|MIDDLE|SUFFIX)\]",
        r"(?:gMASK|sMASK|BOS|EOS|EOT|CLS|SEP|MASK|PAD|UNK)\]",
        r"\|[^\[\]\s]{1,64}\|\]",
        r"e~\[",
    ),
    "]": (r"~!?[a-z]{1,3}[\[\]]", r"![a-z]{1,3}~\[", r"<\][^\[\]\n]{1,32}\[>\["),
}  # fmt: skip
"""Patterns of control tokens in known vocabularies, for a server whose vocabulary cannot be read: the first
character, and patterns of what follows it. (``re`` finds a fixed first character many times faster than a pattern.)"""

_BEGUN = re.compile(
    r"<(?:[|｜][^<>\s]{0,66}|/?s?|/?[A-Za-z][A-Za-z_:]{0,40}\|?|\[[^<>\s]{0,66})\Z"
    r"|\[(?:/?[A-Za-z_]{0,16}|e~|\|[^\[\]\s]{0,66})\Z|\][~!<][^\n]{0,40}\Z"
)
"""The beginning of a possible control token at the end of a text, which the next text may complete."""

LONGEST_GUESS = 80
"""More characters than the longest match of ``LOOKS_LIKE_CONTROL``."""

PIECE = 64 << 10
"""Characters searched at once; ``re`` blocks the event loop."""

_PRIVATE = re.compile("[\ue000-\uf8ff]")
_ESCAPED = re.compile(r"u((?:e[0-9a-f]|f[0-8])[0-9a-f]{2})")
"""A JSON escape without its backslash, in lower case: IGNORECASE would make ``re`` twenty times slower."""
ESCAPE_LENGTH = 5

_OPENERS = ("<|", "<｜", "[INST]", "<s>", "</s>")
_CLOSERS = ("]~b]", "]~!b[", "[e~[", "]!p~[", "]!d~[")
"""Tokens whose end counts at the beginning of a text, but whose first character does not count at the end: half of
all JSON ends in ``]``."""


class ControlTokens:
    """The control tokens of one vocabulary: ``known`` texts; ``guess`` adds every text that looks like one.

    ``tags`` are excluded from ``guess``.
    """

    def __init__(self, known: Iterable[str], *, guess: bool, tags: Iterable[str] = ()) -> None:
        self.known = tuple(sorted({text for text in known if len(text) > 1}, key=len, reverse=True))
        self.guess = guess
        follows = {head: [_one_of(rests)] for head, rests in _by_head(self.known).items()}
        spared = _by_head(tags)
        for head, patterns in LOOKS_LIKE_CONTROL.items() if guess else ():
            others = f"(?!{'|'.join(map(re.escape, spared[head]))})" if head in spared else ""
            follows.setdefault(head, []).append(f"{others}(?:{'|'.join(patterns)})")
        starts = [f"{re.escape(head)}(?={'|'.join(patterns)})" for head, patterns in follows.items()]
        self._starts = re.compile("|".join(starts) or r"(?!)")
        edges = {*self.known, *(_OPENERS if guess else ())}
        self._heads = {text[:size] for text in edges for size in range(1, len(text))}
        closers = {*edges, *(_CLOSERS if guess else ())}
        self._tails = {text[-size:] for text in closers for size in range(2, len(text))}
        self._longest = max(map(len, edges), default=0)
        self._window = max(self._longest, LONGEST_GUESS if guess else 0)
        # Every head contains a token's first character and every tail its last one: most texts have neither.
        firsts = {text[0] for text in edges} | ({"<", "[", "]"} if guess else set())
        lasts = {text[-1] for text in closers}
        self._first = re.compile(_any_of(firsts))
        self._last = re.compile(_any_of(lasts))
        # A text without any of these needs no mark.
        self._edge = re.compile(_any_of({*firsts, *lasts, *follows}))

    def mark(self, text: str, mark: str) -> str:
        """Return ``text`` with ``mark`` after the first character of every control token that starts in it.

        The text's end is marked too if it begins a control token, and its beginning if it ends one: neighbouring text
        in the prompt could complete them.
        """
        if len(text) <= PIECE and not self._edge.search(text):
            return text
        if len(text) > PIECE or self._starts.search(text):
            heads = [
                found.end()
                for start, end in _pieces(text)
                for found in self._starts.finditer(text, start, end + self._window)
                if found.start() < end
            ]
            text = mark.join(text[start:end] for start, end in pairwise((0, *heads, len(text))))
        return self._mark_end(self._mark_beginning(text, mark), mark)

    def _mark_beginning(self, text: str, mark: str) -> str:
        start = len(text) - len(text.lstrip())
        if not self._last.search(text, start, start + self._longest):
            return text
        for size in range(min(self._longest, len(text) - start), 1, -1):
            if text[start : start + size] in self._tails:
                return f"{text[: start + 1]}{mark}{text[start + 1 :]}"
        return text

    def _mark_end(self, text: str, mark: str) -> str:
        end = len(text.rstrip())
        earliest = max(0, end - self._window)
        heads = [found.start() for found in self._first.finditer(text, earliest, end)]
        # All of them: one beginning may contain another.
        for start in reversed(heads):
            if text[start:end] in self._heads or (self.guess and _BEGUN.match(text, start, end)):
                text = f"{text[: start + 1]}{mark}{text[start + 1 :]}"
                end += len(mark)
        return text

    def mark_all(self, value: Any, mark: str) -> Any:
        """Return a JSON value with every string in it marked, keys too."""
        return self._marked(value, mark) if self.may_mark("\n".join(texts_in(value))) else value

    def may_mark(self, texts: str) -> bool:
        """Return whether any part of ``texts`` may get a mark: one quick search, and most values have nothing to
        mark."""
        return self._edge.search(texts) is not None

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self.mark(value, mark)
        if isinstance(value, dict):
            return {self.mark(key, mark): self._marked(one, mark) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(one, mark) for one in value]
        return value


def _by_head(texts: Iterable[str]) -> dict[str, list[str]]:
    heads: dict[str, list[str]] = {}
    for text in texts:
        heads.setdefault(text[0], []).append(text[1:])
    return heads


def _any_of(characters: Iterable[str]) -> str:
    """Return a pattern of one of ``characters``, which never matches if there is none."""
    return "|".join(map(re.escape, sorted(characters))) or r"(?!)"


def _one_of(texts: Sequence[str]) -> str:
    """Return a pattern that matches one of ``texts``, built as a prefix tree.

    So each position costs one step per matching character and not one per token (hundreds); ``re`` blocks the
    event loop while it searches megabytes of a request.
    """
    common = commonprefix(texts)  # noqa: RUF071 - characters are what is meant
    rests = [text[len(common) :] for text in texts]
    if "" in rests:
        return re.escape(common)
    branches = "|".join(re.escape(head) + _one_of(more) for head, more in _by_head(rests).items())
    return f"{re.escape(common)}(?:{branches})"


def private_characters(text: str) -> frozenset[str]:
    """Return the private-use characters that occur in ``text``, themselves or as JSON escapes."""
    used: set[str] = set()
    for start, end in _pieces(text):
        if not text.isascii() and _PRIVATE.search(text, start, end):
            used.update(text[start:end])
        used.update(chr(int(found, 16)) for found in _ESCAPED.findall(text[start : end + ESCAPE_LENGTH].lower()))
    return frozenset(used)


def choose_mark(*values: Any, used: frozenset[str] = frozenset()) -> str:
    """Return a private-use character that occurs in no text of ``values`` (JSON), neither itself nor its JSON escape.

    ``used`` are further excluded characters. Raises ``ValueError`` if all 6,400 are used.
    """
    taken = used | private_characters("\n".join(texts_in(values)))
    for point in PRIVATE_USE:
        if chr(point) not in taken:
            return chr(point)
    raise ValueError("the request uses every private-use character there is")


def texts_in(value: Any) -> list[str]:
    """Return every text in a JSON value, keys too."""
    texts: list[str] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, dict):
            texts += [key for key in one if isinstance(key, str)]
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one
    return texts


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the pieces in which a text is searched, so that other work can run in between."""
    for start in range(0, len(text), PIECE):
        yield start, min(start + PIECE, len(text))


def gguf_control_tokens(path: Path) -> list[str]:
    """Return the texts of a GGUF's control tokens. Raises ``BadInput`` for a file that is no GGUF."""
    from strata_pack.weights.gguf.file import GgufFile

    with GgufFile.open(path) as file:
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        kinds = file.metadata.get("tokenizer.ggml.token_type")
        if tokens is None or kinds is None or not isinstance(tokens.value, Sequence):
            return []
        pairs = zip(tokens.value, kinds.value, strict=False)
        # Some files declare a control token as user-defined; llama.cpp then corrects it by its text.
        looks = re.compile(
            "|".join(f"{re.escape(head)}(?:{'|'.join(patterns)})" for head, patterns in LOOKS_LIKE_CONTROL.items())
        )
        return [str(text) for text, kind in pairs if kind in CONTROL_TYPES or looks.fullmatch(str(text))]


def template_literals(source: str) -> list[str]:
    """Return the texts in a template's source that may be control tokens; a server can confirm them."""
    found = re.findall(
        r"<[^<>\s{}%'\"=]{1,64}>|\[/?[A-Za-z_]{2,32}\]|\[\|[^\[\]\s{}%'\"]{1,64}\|\]"
        r"|\]~!?[a-z]{1,3}[\[\]]|\][!][a-z]{1,3}~\[|\[e~\[",
        source,
    )
    return sorted(set(found))


def asked_control_tokens(texts: Iterable[str], tokenize: Callable[[str, bool], Sequence[int]]) -> list[str]:
    """Return the ``texts`` that a server's tokenizer reads as control tokens.

    ``tokenize(text, parse_special)`` gives token ids: a control token is one id with special tokens parsed and
    something else without.
    """
    return [text for text in texts if len(tokenize(text, True)) == 1 and tokenize(text, True) != tokenize(text, False)]

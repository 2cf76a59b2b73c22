"""Tracks whether the end of a growing Markdown text is in a fenced code block, in a code span, or in prose.

The block structure is that of CommonMark (0.31, sections 4 and 5), followed line by line; the work depends only on the
beginning of each line: containers (block quotes, list items), paragraphs with their lazy lines, fences. HTML blocks
and link definitions are left out on purpose: CommonMark would take the tags of a tool call for HTML and ignore a fence
after them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_CONTAINERS = 32
"""Largest nesting depth of block quotes and list items; deeper markers are text."""

_QUOTE = 0
"""A container is the number of columns by which a list item's lines are indented, or this value for a block quote."""

_DECISIVE = re.compile(r"[^ \t\r>\-+*0-9.)`~#=_]")
"""After such a character the beginning of a line is decided, except after an opening fence."""

_MARKER = re.compile(r"([-+*]|([0-9]{1,9})[.)])(?= |$)")
_BREAK = re.compile(r"(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$")
_SETEXT = re.compile(r"(?:=+|-+) *$")
_HEADING = re.compile(r"#{1,6}(?: |$)")
_FENCE = re.compile(r"(`{3,}|~{3,})(.*)", re.DOTALL)
_TICKS = re.compile(r"`+")


class _Fence(NamedTuple):
    mark: str
    length: int


class MarkdownTracker:
    """Follows a text that is fed in pieces of any size; ``fenced`` and ``open_ticks`` describe its end.

    ``spans``: whether code spans are followed too. A span ends at the end of its line at the latest: a stray
    backtick must not make a call on a later line a quotation.
    """

    __slots__ = (
        "_beginning",
        "_containers",
        "_empty_item",
        "_fence",
        "_matched",
        "_opening",
        "_paragraph",
        "_run",
        "_settled",
        "_span",
        "_spans",
        "quiet",
    )

    def __init__(self, *, spans: bool) -> None:
        self._spans = spans
        self._containers: list[int] = []
        self._fence: _Fence | None = None
        self._paragraph = False
        self._empty_item = False
        # The current line: its beginning while that is undecided; then whether the rest of the line changes nothing,
        # or whether it opens a fence unless its info string contains a backtick.
        self._beginning: list[str] = []
        self._settled = False
        self._opening: _Fence | None = None
        self._matched = 0
        self._span = 0
        self._run = 0
        self.quiet = False
        """Whether further text without a line feed or backtick changes nothing."""

    def feed(self, text: str) -> None:
        """Read the next piece of the text."""
        if "\n" not in text:
            if text:
                self._read(text)
        else:
            ended = False
            for line in text.split("\n"):
                if ended:
                    if not self._settled:
                        self._end_beginning()
                    self._settled = False
                    self._span = self._run = 0
                ended = True
                if line and not (self._settled and not self._run and "`" not in line):
                    self._read(line)
        self.quiet = self._settled and not self._run

    def beginning(self) -> str | None:
        """Return the current line so far if it consists of white space and markers only, else None."""
        return None if self._settled or self._opening else "".join(self._beginning)

    def fenced(self) -> bool:
        """Return whether the text that follows is in a fenced code block (or in the line that opens one)."""
        if not self._settled and self._opening is None:
            self._decide("".join(self._beginning) + "<", whole=False)
        return self._opening is not None or self._fence is not None

    def open_ticks(self) -> int:
        """Return the length of the backtick run on this line that may open a code span here, 0 if there is none."""
        self._end_run()
        return self._span

    def drop_span(self) -> None:
        """Treat the open backtick run as text: it is not closed on this line."""
        self._span = 0

    # One line.

    def _read(self, piece: str) -> None:
        if self._spans and (self._run or "`" in piece):
            self._read_ticks(piece)
        if self._settled:
            return
        if self._opening is not None:
            if "`" in piece:
                self._no_fence()
        elif not self._containers and (piece[0] == "<" or piece[0].isalpha()) and not self._beginning:
            self._settled = True  # prose at the left margin, by far the most lines
            self._paragraph = self._fence is None
        else:
            self._read_beginning(piece)

    def _read_beginning(self, piece: str) -> None:
        decisive = _DECISIVE.search(piece)
        if decisive is None:
            self._beginning.append(piece)
            return
        self._decide("".join(self._beginning) + piece[: decisive.end()], whole=False)
        if self._opening is not None and "`" in piece[decisive.end() :]:
            self._no_fence()

    def _end_beginning(self) -> None:
        """Handle the end of a line that consists only of its beginning."""
        if self._opening is None:
            self._decide("".join(self._beginning), whole=True)
        if self._opening is not None:
            self._open_fence()

    def _read_ticks(self, piece: str) -> None:
        start = 0
        for run in _TICKS.finditer(piece):
            if run.start() > start or (start == 0 and run.start() > 0):
                self._end_run()
            self._run += len(run[0])
            start = run.end()
        if start < len(piece):
            self._end_run()

    def _end_run(self) -> None:
        if self._run:
            if not self._span:
                self._span = self._run
            elif self._span == self._run:
                self._span = 0
            self._run = 0

    # The block structure: CommonMark's algorithm (its appendix, phase 1), one line at a time.

    def _decide(self, line: str, *, whole: bool) -> None:
        """Read the beginning of a line: the whole line if ``whole``, else up to its first decisive character."""
        self._settled = True
        self._beginning.clear()
        if whole:
            line = line.rstrip("\r")
        if "\t" in line:
            line = line.expandtabs(4)
        pos, matched = self._match_containers(line)
        if self._fence is not None:
            if matched == len(self._containers):
                if whole and self._closes_fence(line[pos:]):
                    self._fence = None
                return
            self._fence = None
        self._open_blocks(line, pos, matched)

    def _match_containers(self, line: str) -> tuple[int, int]:
        """Return where the line's own text begins and how many of the open containers it continues."""
        pos = matched = 0
        for need in self._containers:
            start = _first_text(line, pos)
            blank = start == len(line)
            if need == _QUOTE:
                if blank or start - pos > 3 or line[start] != ">":
                    break
                pos = start + 1 + (line[start + 1 : start + 2] == " ")
            elif start - pos >= need:
                pos += need
            elif blank and not (self._empty_item and matched == len(self._containers) - 1):
                pos = start
            else:
                break
            matched += 1
        return pos, matched

    def _closes_fence(self, text: str) -> bool:
        fence = self._fence
        bare = text.strip(" ")
        return (
            fence is not None
            and _first_text(text, 0) <= 3
            and len(bare) >= fence.length
            and bare == fence.mark * len(bare)
        )

    def _open_blocks(self, line: str, pos: int, matched: int) -> None:
        """Read the blocks that the line opens after the ``matched`` containers, up to its leaf."""
        continues = self._paragraph and matched == len(self._containers)
        while (start := _first_text(line, pos)) < len(line):
            indent, text = start - pos, line[start:]
            if indent > 3:
                self._read_text(matched, paragraph=continues)
                return
            if text[0] == ">" and matched < MAX_CONTAINERS:
                matched = self._open_container(matched, _QUOTE)
                pos = start + 1 + (text[1:2] == " ")
            elif (fence := _FENCE.match(text)) and not (text[0] == "`" and "`" in fence[2]):
                self._opening, self._matched = _Fence(text[0], len(fence[1])), matched
                if text[0] == "~":
                    self._open_fence()
                else:
                    self._settled = False
                return
            elif _HEADING.match(text) or (continues and _SETEXT.match(text)) or _BREAK.match(text):
                self._close_containers(matched)
                self._paragraph = False
                return
            elif (marker := _MARKER.match(text)) and matched < MAX_CONTAINERS:
                after = text[marker.end() :]
                blank = not after.strip(" ")
                if continues and (blank or int(marker[2] or 1) != 1):
                    break  # such an item cannot interrupt a paragraph
                spaces = _first_text(after, 0)
                width = marker.end() + (1 if blank or spaces > 4 else spaces)
                matched = self._open_container(matched, indent + width)
                pos = start + width
                if blank:
                    self._empty_item = True
                    return
            else:
                break
            continues = False
        else:
            self._close_containers(matched)
            self._paragraph = False
            return
        self._read_text(matched, paragraph=True)

    def _read_text(self, matched: int, *, paragraph: bool) -> None:
        """Read a line of text: of a paragraph (also a lazy continuation line) or of code."""
        if self._paragraph and matched < len(self._containers):
            return
        self._close_containers(matched)
        self._paragraph = paragraph
        self._empty_item = False

    def _open_container(self, matched: int, need: int) -> int:
        self._close_containers(matched)
        self._containers.append(need)
        self._paragraph = False
        return matched + 1

    def _close_containers(self, matched: int) -> None:
        if matched < len(self._containers):
            del self._containers[matched:]
            self._empty_item = False

    def _open_fence(self) -> None:
        self._close_containers(self._matched)
        self._fence, self._opening = self._opening, None
        self._paragraph = self._empty_item = False

    def _no_fence(self) -> None:
        """Treat the line as text: its info string contains a backtick, so it does not open a fence."""
        self._settled, self._opening = True, None
        self._read_text(self._matched, paragraph=True)


def _first_text(line: str, pos: int) -> int:
    """Return the position of the first character from ``pos`` on that is not a space, the line's end if there is
    none."""
    while pos < len(line) and line[pos] == " ":
        pos += 1
    return pos

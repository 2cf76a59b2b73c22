"""Defines ``OutputParser``, the public class that parses generated text delta by delta into events.

This module imports nothing, so importing the class is fast. The implementation (``strata_pack.parsing.parser``) is
imported when the first parser is created, as ``pathlib.Path`` creates a ``PosixPath``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from strata_pack.parsing.dialect import Dialect
    from strata_pack.parsing.events import Counters, Event, EventKind
    from strata_pack.parsing.machine import CallFormat, ImplicitEnd


class OutputParser:
    """Parses one reply. Call ``feed`` with each delta (cut at any position), then ``finish`` once; both return events.

    - ``thinking``: whether the prompt ends inside the thinking.
    - ``tools``: OpenAI tool objects or bare function objects. None: unknown, calls are parsed without a schema.
    Empty: the request has no tools (or ``tool_choice`` "none"), nothing is parsed as a call.
    - ``stream_tools``: emit ``tool_start`` and ``tool_args`` while a call is generated.
    - ``implicit_end``: which calls in the thinking end it. ``"off"``: none; ``"any"``: every whole call;
      ``"guarded"``: one at the start of a line, outside fences, followed by ``<function=``; ``"strict"``: that, of
      a declared name, followed by nothing but calls up to the end of the thinking, in a reply that was not cut.
    - ``call_format``: ``"xml"``, ``"json"``, or ``"auto"``, which decides per call.
    - ``dialect``: the family's tags, as a ``Dialect`` or by the name of a known one.

    The result does not depend on how the text is cut into deltas, no event is ever revoked, and no text makes ``feed``
    raise. ``ValueError`` for an unknown policy, format or dialect, ``RuntimeError`` for ``feed`` after ``finish``.
    """

    counters: Counters
    """Counts of what happened in the reply; final only after ``finish``."""

    def __new__(cls, *_options: Any, **_named: Any) -> OutputParser:
        return super().__new__(_machine() if cls is OutputParser else cls)

    def __init__(
        self,
        thinking: bool = True,
        tools: Iterable[Any] | None = None,
        stream_tools: bool = False,
        implicit_end: ImplicitEnd = "guarded",
        call_format: CallFormat = "auto",
        dialect: Dialect | str = "qwen",
    ) -> None:
        raise NotImplementedError("OutputParser is not made to be subclassed")

    @classmethod
    def for_prompt(cls, prompt: str, **options: Any) -> OutputParser:
        """Return a parser for the reply to ``prompt``; the end of the prompt shows whether the reply begins in the
        thinking."""
        from strata_pack.parsing.parser import thinking_open

        return cls(thinking=thinking_open(prompt, options.get("dialect", "qwen")), **options)

    @classmethod
    def for_template(cls, template: str, **options: Any) -> OutputParser:
        """Return a parser for the replies of a model with this chat template; the tags in it determine the dialect."""
        from strata_pack.parsing.dialect import dialect_of

        return cls(dialect=dialect_of(template), **options)

    @property
    def pending(self) -> bool:
        """Whether text is held back undecided; a reasoning budget must not cut here."""
        raise NotImplementedError

    @property
    def in_thinking(self) -> bool:
        """Whether the parser is in the thinking (also while a call in it is undecided)."""
        raise NotImplementedError

    @property
    def in_implicit_call(self) -> bool:
        """Whether a call, or what may become one, is being read inside the thinking."""
        raise NotImplementedError

    @property
    def flowing(self) -> EventKind | None:
        """The kind of text that ``feed`` would return as it is: any without "<", "`", CR and LF. None: not certain."""
        raise NotImplementedError

    def flowed(self, text: str) -> None:
        """Know of text, not empty, that the caller passed on itself instead of ``feed``, because it is ``flowing``."""
        raise NotImplementedError

    def feed(self, delta: str, special: bool | None = None) -> list[Event]:
        """Read the next piece of the reply; return the events that are now certain.

        The cost is proportional to ``delta``, not to the held text. ``special``: True for a piece that is one special
        token of the vocabulary, False for one that consists of ordinary tokens, None if unknown. Tags of the thinking
        and of calls are text where ordinary tokens spell them.
        """
        raise NotImplementedError

    def end_thinking(self) -> list[Event]:
        """End the thinking here, as a ``</think>`` would; for a caller that enforces a reasoning budget, for example.

        Held text is decided as at a truncation; an incomplete call in the thinking stays reasoning. Newlines and a
        ``</think>`` that follow are dropped. Does nothing if the thinking is over.
        """
        raise NotImplementedError

    def reopen_thinking(self) -> list[Event]:
        """Begin the thinking again here: the following text is reasoning up to the next end of the thinking.

        Held text is decided as at a truncation. Does nothing inside the thinking.
        """
        raise NotImplementedError

    def finish(self, finish_reason: str | None = "stop") -> list[Event]:
        """End the reply; return the last events. The reason "length" (and similar ones) means a truncated text."""
        raise NotImplementedError


_made: list[type[OutputParser]] = []


def _machine() -> type[OutputParser]:
    """Return the implementing subclass, which is created at the first call."""
    if not _made:
        from strata_pack.parsing.parser import LayeredParser

        _made.append(type("OutputParser", (LayeredParser, OutputParser), {"__module__": __name__}))
    return _made[0]

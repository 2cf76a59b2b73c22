"""Parses generated text delta by delta into events; this is the public class.

This module imports nothing, so that naming the class costs nothing; the machine (``strata_pack.parsing.parser``) is
imported when the first parser is made, as ``pathlib.Path`` makes a ``PosixPath``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from strata_pack.parsing.dialect import Dialect
    from strata_pack.parsing.events import Counters, Event
    from strata_pack.parsing.machine import CallFormat, ImplicitEnd


class OutputParser:
    """Parses one reply. ``feed`` it deltas, cut anywhere, then call ``finish`` once; both return events.

    - ``thinking``: whether the prompt left the thinking open.
    - ``tools``: OpenAI tool objects or bare function objects. None: not known, calls are parsed without a schema.
      Empty: the request has none (or ``tool_choice`` "none"), nothing is parsed as a call.
    - ``stream_tools``: send ``tool_start`` and ``tool_args`` while a call is written.
    - ``implicit_end``: which calls in the thinking end it. ``"off"``: none; ``"any"``: every whole call;
      ``"guarded"``: one at the start of a line, outside fences, followed by ``<function=``; ``"strict"``: that, of
      a declared name, followed by nothing but calls up to the end of the thinking, in a reply that was not cut.
    - ``call_format``: ``"xml"``, ``"json"``, or ``"auto"``, which decides per call.
    - ``dialect``: the family's tags, as a ``Dialect`` or by the name of a known one.

    The result is the same for every way to cut the text, nothing emitted is taken back, and no text makes ``feed``
    raise. ``ValueError`` for an unknown policy, format or dialect, ``RuntimeError`` for ``feed`` after ``finish``.
    """

    counters: Counters
    """What happened in the reply; whole only after ``finish``."""

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
        """Return a parser for the reply to ``prompt``: whether it begins in the thinking is read off its end."""
        from strata_pack.parsing.parser import thinking_open

        return cls(thinking=thinking_open(prompt, options.get("dialect", "qwen")), **options)

    @classmethod
    def for_template(cls, template: str, **options: Any) -> OutputParser:
        """Return a parser for the replies of a model with this chat template: its tags name the dialect."""
        from strata_pack.parsing.dialect import dialect_of

        return cls(dialect=dialect_of(template), **options)

    @property
    def pending(self) -> bool:
        """Whether any text is held back undecided; a reasoning budget must not cut there."""
        raise NotImplementedError

    @property
    def in_thinking(self) -> bool:
        """Whether the thinking goes on (also while a call in it is being decided)."""
        raise NotImplementedError

    @property
    def in_implicit_call(self) -> bool:
        """Whether a call, or what may become one, is being read inside the thinking."""
        raise NotImplementedError

    def feed(self, delta: str, special: bool | None = None) -> list[Event]:
        """Read the next piece of the reply; return what is certain now. Costs what is new, not what is held.

        ``special``: True for a piece that is one special token of the vocabulary, False for one that is known to be of
        ordinary tokens, None where that is not known. The tags of the thinking and of calls are text where ordinary
        tokens spell them.
        """
        raise NotImplementedError

    def end_thinking(self) -> list[Event]:
        """End the thinking here, as a ``</think>`` would, for a caller that knows better than the text.

        What was held is decided as at a cut; half a call in the thinking stays reasoning. Newlines and a ``</think>``
        that come next are dropped. Nothing happens where the thinking is over.
        """
        raise NotImplementedError

    def reopen_thinking(self) -> list[Event]:
        """Begin the thinking again here: the text that comes is reasoning up to the next end of the thinking.

        What was held is decided as at a cut. Nothing happens where the thinking goes on.
        """
        raise NotImplementedError

    def finish(self, finish_reason: str | None = "stop") -> list[Event]:
        """End the reply; return the last events. The reason "length" (and its kin) means that the text was cut."""
        raise NotImplementedError


_made: list[type[OutputParser]] = []


def _machine() -> type[OutputParser]:
    """Return the subclass that does what ``OutputParser`` says, made at the first call."""
    if not _made:
        from strata_pack.parsing.parser import LayeredParser

        _made.append(type("OutputParser", (LayeredParser, OutputParser), {"__module__": __name__}))
    return _made[0]

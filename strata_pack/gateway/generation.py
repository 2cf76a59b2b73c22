"""One reply: upstream completions in, events of the parser out.

Most replies are one ``/completion``. A second one goes on from the same prompt and what was generated so far when the
thinking has to be closed (its budget is spent), or when the answer has a grammar: thinking is free, so the grammar
starts with the completion that follows ``</think>``. The server's prompt cache makes the second one cheap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from strata_pack.gateway.logprobs import ContentLogprobs
from strata_pack.gateway.outcome import Ending, FinishReason, GenerationOutcome
from strata_pack.gateway.plain import PlainText, ShortWay
from strata_pack.gateway.prompt import Prompt, Prompts
from strata_pack.gateway.token_ids import TokenPieces
from strata_pack.gateway.trials import begins_call, check_grammar
from strata_pack.gateway.turn import GrammarAnswer, Turn
from strata_pack.gateway.upstream import Stream, Upstream
from strata_pack.parsing import Event, OutputParser

TAIL_EVENTS = 200
"""Pieces of reasoning that are kept to show what stood before an implicit end."""

FINAL_FIELDS = [
    "content",
    "stop",
    "stop_type",
    "stopping_word",
    "tokens_predicted",
    "tokens_evaluated",
    "completion_probabilities",
    "timings",
]
"""What the last event of a stream must tell; without this list it repeats the whole prompt."""


class Generation:
    """The generation of one choice of ``turn``. Iterate ``events`` once; then ``outcome`` and ``parser`` are final.

    The parser must stand where the prompt ends. ``constraint`` are fields of ``/completion`` (``grammar`` or
    ``json_schema``) that hold for the answer.
    """

    def __init__(
        self,
        turn: Turn,
        prompt: Prompt,
        parser: OutputParser,
        *,
        upstream: Upstream,
        prompts: Prompts,
        constraint: dict[str, Any] | None = None,
        pieces: TokenPieces | None = None,
    ) -> None:
        self.turn = turn
        self.parser = parser
        self.outcome = GenerationOutcome()
        self.until = math.inf
        """When it has to be over, in the loop's time."""
        self.dialect = prompt.dialect
        self._logprobs = None if turn.top_logprobs is None else ContentLogprobs(turn.top_logprobs)
        self._prompt = prompt
        self._upstream = upstream
        self._prompts = prompts
        self._constraint = constraint or {}
        self._pieces = pieces
        self._believes_ids = False
        """Whether the ids of the running completion say which tags are special tokens."""
        self._spelled = ""
        """What ordinary tokens have spelled, while it may become a tag."""
        self._plain: PlainText | None = None
        self._checked = False
        self._thinking = prompt.thinking
        """Whether what comes is thinking; some models open it themselves."""
        self._answering = False
        self._generated: list[str] = []
        """What the running completion has generated, until the answer begins."""
        self._spent = 0
        """Tokens of the running completion."""
        self._taken: list[list[dict[str, Any]]] = []
        self._measured = False
        self._announced = False
        """Whether a call has been announced whose end has not come."""
        self.call_names: list[str] = []
        self._reasoning: deque[str] = deque(maxlen=TAIL_EVENTS)

    @property
    def calls(self) -> int:
        """The calls delivered so far."""
        return len(self.call_names)

    @property
    def reasoning_tail(self) -> str:
        """The end of the reasoning so far, for a person to look at."""
        return "".join(self._reasoning)

    def take_logprobs(self) -> list[list[dict[str, Any]]] | None:
        """Return the log probabilities of the content of each event just yielded, ``None`` if nobody asked."""
        if self._logprobs is None:
            return None
        taken, self._taken = self._taken, []
        return taken

    async def events(self, way: ShortWay | None = None) -> AsyncGenerator[list[Event], None]:
        """Yield the parser's events as they come, never an empty list; those that can go the short ``way`` do.

        Raises ``ApiError`` if the upstream refuses or goes away. Closing the iterator stops the generation.
        """

        reason: FinishReason | None = None
        while reason is None:
            body = await self._body()
            opened = await self._upstream.open("/completion", body, until=self.until)
            async with opened as stream:
                if way is not None and not self._may_cut:
                    self._divert(stream, way)
                over: Ending | None = None
                while over is None:
                    batch = await stream.events()
                    if self._believes_ids and self._may_spell(batch):
                        await self._learn(batch)
                    found, over = self._read(batch)
                    if found:
                        yield found
            ending = over
            reason = "length" if ending.kind == "limit" else "stop"
            if ending.kind == "word" and ending.stop_text in self.turn.stop:
                self.outcome.stop_text = ending.stop_text
            close = self._closing(ending)
            if close is not None:
                reason = None if self._tokens_left() else "length"
                # Without a token left, the thinking is closed only where the model has closed it.
                if (reason is None or close == self.dialect.think_close) and (found := self._go_on(close)):
                    yield found
                if reason is None and ending.kind == "budget":
                    self.outcome.budget_closed = True
        rest = self.parser.finish(reason)
        if ending.kind != "call":
            self._note(rest)
            if len(self.call_names) > 1 and not self.turn.parallel_tool_calls:
                rest = self._first_call(rest)
            if rest:
                yield rest
            if self._cut_call():
                reason = "length"
        self.outcome.finish_reason = "tool_calls" if reason == "stop" and self.call_names else reason

    def _divert(self, stream: Stream, way: ShortWay) -> None:
        """Let what arrives while ``events`` waits go the short way, where that is open."""

        def take(batch: list[dict[str, Any]]) -> bool:
            if not way.is_open() or (self._believes_ids and self._may_spell(batch)):
                return False
            found, _ = self._read(batch)
            if found:
                way.deliver(found)
            return True

        self._plain = PlainText(
            way, lambda: None if self._spelled or self._logprobs is not None else self.parser.flowing
        )
        stream.divert(take, self._plain.take)

    def catch_up(self) -> None:
        """Count what went out as plain text, and tell the parser."""
        run = None if self._plain is None else self._plain.end()
        if run is None:
            return
        self.parser.flowed(run.text)
        if not self._answering:
            self._generated.append(run.text)
        if run.kind == "reasoning":
            self._reasoning.append(run.text)
        fresh = self._count_tokens(run.predicted)
        if self._thinking and self.parser.in_thinking:
            self.outcome.usage.reasoning += fresh

    def _count_tokens(self, predicted: int) -> int:
        """Count what the completion has generated so far; return how many of it are new."""
        fresh, self._spent = predicted - self._spent, predicted
        self.outcome.usage.completion += fresh
        return fresh

    def _cut_call(self) -> bool:
        """Return whether the reply breaks off in a call: to a client that is "length", or it would take half a call for
        whole.

        A stop string of the client's own may cut one that it has not received yet; that is what it asked for.
        """
        return self._announced or (self.parser.counters.unfinished_calls > 0 and self.outcome.stop_text is None)

    # One completion

    def _tokens_left(self) -> bool:
        return self.turn.max_tokens is None or self.outcome.usage.completion < self.turn.max_tokens

    async def _body(self) -> dict[str, Any]:
        """Return the body of the next ``/completion``."""
        turn = self.turn
        stop = list(turn.stop)
        constraint: dict[str, Any] = {}
        if self._constraint and self._thinking:
            if isinstance(turn.answer, GrammarAnswer) and not self._checked:
                self._checked = True
                await check_grammar(self._upstream, turn.answer)
            stop.append(self.dialect.think_close)
        elif self._constraint and not await self._wants_call():
            constraint = self._constraint
        body = {
            **turn.sampling,
            **constraint,
            "prompt": await self._prompts.wire(self._prompt),
            "stream": True,
            "cache_prompt": True,
            "n_predict": -1 if turn.max_tokens is None else turn.max_tokens - self.outcome.usage.completion,
            "stop": stop,
            "response_fields": FINAL_FIELDS,
            # Else the server writes nothing for a tag that is a control token of the vocabulary.
            "preserved_tokens": list(self.dialect.all_tags),
        }
        if turn.seed is not None:
            body["seed"] = turn.seed
        if turn.top_logprobs is not None:
            body["n_probs"] = max(turn.top_logprobs, 1)
        if self._may_cut:
            body["timings_per_token"] = True
        self._spent = 0
        # A grammar makes the model spell tags with whatever tokens fit: there they are meant.
        self._believes_ids = self._pieces is not None and self._pieces.reliable and not constraint
        self._spelled = ""
        return body

    async def _wants_call(self) -> bool:
        """Return whether a turn whose answer must be JSON, but which may call tools, goes on with a call."""
        turn = self.turn
        if turn.answer is None or not turn.callable_tools or turn.tool_choice == "required":
            return False
        return await begins_call(self._upstream, turn, await self._prompts.wire(self._prompt), self.dialect.call_open)

    @property
    def _may_cut(self) -> bool:
        """Whether we may end a completion before the server does."""
        return self.turn.reasoning_budget is not None or not self.turn.parallel_tool_calls

    def _one_by_one(self, batch: list[dict[str, Any]]) -> bool:
        """Return whether each token of a batch must be looked at by itself; else their text is fed in one piece."""
        if self._logprobs is not None or self._may_cut or (self._believes_ids and self._may_spell(batch)):
            return True
        # The thinking may end in this batch, and its tokens are counted.
        return not self._answering and any("<" in event["content"] for event in batch)

    def _read(self, batch: list[dict[str, Any]]) -> tuple[list[Event], Ending | None]:
        """Feed a batch of stream events; return the parser's events and, when the completion is over, its ending."""
        if len(batch) > 1 and self._one_by_one(batch):
            events: list[Event] = []
            for one in batch:
                found, ending = self._read([one])
                events += found
                if ending is not None:
                    return events, ending
            return events, None
        self.catch_up()
        last = batch[-1]
        delta = last["content"] if len(batch) == 1 else "".join([event["content"] for event in batch])
        tokens = _count(last, "tokens_predicted", self._spent + len(batch))
        usage = self.outcome.usage
        fresh = self._count_tokens(tokens)
        if self._logprobs is not None:
            self._logprobs.add(delta, last.get("completion_probabilities") or [])
        events = self._feed(delta, self._special(last) if self._believes_ids else None)
        if self._thinking and self.parser.in_thinking:
            usage.reasoning += fresh
        if not usage.prompt:
            usage.prompt = _count(last, "tokens_evaluated")
        if self.call_names and not self.turn.parallel_tool_calls:
            self._measure(last)
            return self._first_call(events), Ending("call")
        if last.get("stop"):
            self._measure(last)
            return events, Ending(str(last.get("stop_type", "eos")), str(last.get("stopping_word", "")))
        if self._budget_spent(delta, events):
            self._measure(last)
            return events, Ending("budget")
        return events, None

    def _may_spell(self, batch: list[dict[str, Any]]) -> bool:
        return bool(self._spelled) or any("<" in event["content"] for event in batch)

    async def _learn(self, batch: list[dict[str, Any]]) -> None:
        assert self._pieces is not None
        await self._pieces.learn(batch)
        self._believes_ids = self._pieces.reliable

    def _special(self, event: dict[str, Any]) -> bool | None:
        """Return whether an event's text is a special token; ``None`` where that is not known, or does not matter."""
        if not self._may_spell([event]) or not event["content"]:
            return None
        assert self._pieces is not None
        special = self._pieces.special(event)
        spelled = self._spelled + event["content"] if special is False else ""
        self._spelled = spelled if self._pieces.begins_tag(spelled) else ""
        return special

    def _feed(self, delta: str, special: bool | None = None) -> list[Event]:
        if not delta:
            return []
        if not self._answering:
            self._generated.append(delta)
        events = self.parser.feed(delta, special)
        if events:
            self._note(events)
        return events

    def _note(self, events: list[Event]) -> None:
        if self._logprobs is not None:
            self._taken += [self._logprobs.take(event.text, content=event.kind == "content") for event in events]
        for event in events:
            if event.kind == "reasoning":
                self._thinking = not self._answering
                self._reasoning.append(event.text)
            else:
                self._thinking, self._answering = False, True
                if event.kind == "tool_start":
                    self._announced = True
                elif event.kind == "tool_call" and event.call is not None:
                    self._announced = False
                    self.call_names.append(event.call.name)

    def _first_call(self, events: list[Event]) -> list[Event]:
        """Return ``events`` up to the first call, which is the last one that the client wants."""
        del self.call_names[1:]
        end = next(index for index, event in enumerate(events) if event.kind == "tool_call")
        return events[: end + 1]

    def _measure(self, last: dict[str, Any]) -> None:
        """Add up what the last event of a completion tells about its prompt."""
        usage, timings = self.outcome.usage, last.get("timings")
        timings = timings if isinstance(timings, dict) else {}
        if not self._measured:
            self._measured = True
            usage.prompt = _count(last, "tokens_evaluated", usage.prompt)
            usage.cached = _count(timings, "cache_n")
        usage.read_again += _count(timings, "prompt_n")

    def _budget_spent(self, delta: str, events: list[Event]) -> bool:
        """Return whether the thinking has to end here: its budget is spent, and the parser has let go of all its text.

        All of the delta must have come out as reasoning: text that has not may be a ``</think>`` just read.
        """
        budget = self.turn.reasoning_budget
        if budget is None or not self._thinking or self.outcome.usage.reasoning < budget or self.parser.pending:
            return False
        return bool(events) and (events[-1].text.endswith(delta) or delta.endswith(events[-1].text))

    # Between two completions

    def _closing(self, ending: Ending) -> str | None:
        """Return the text with which the next completion goes on, ``None`` if the reply is over."""
        if not self._thinking:
            return None
        if ending.kind == "budget":
            return self._prompt.think_close
        if not self._constraint:
            return None
        think_end = self.dialect.think_close
        if ending.kind == "word" and ending.stop_text == think_end != self.outcome.stop_text:
            return think_end
        # The model stopped inside its thinking: the answer that the client demands has still to come.
        return self._prompt.think_close if ending.kind == "eos" and not self.parser.pending else None

    def _go_on(self, close: str) -> list[Event]:
        """Put what was generated and ``close`` behind the prompt; return the parser's events for ``close``."""
        text, think_end = "".join(self._generated), self.dialect.think_close
        events = self._feed(close)
        if close == think_end and not (self.parser.pending and not text.endswith("`")):
            # Else the tag stood in an argument of a call that is still being written inside the thinking.
            close = f"{think_end}\n\n"
            events += self._feed("\n\n")
        if close != think_end:
            self._thinking, self._answering = False, True
        self._prompt = self._prompts.extend(self._prompt, text, close)
        self._generated.clear()
        return events


def _count(fields: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return a number of tokens that the server tells; ``default`` if it tells none."""
    value = fields.get(name)
    return value if isinstance(value, int) else default

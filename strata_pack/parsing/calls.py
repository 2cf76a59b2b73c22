"""Reads a call with its surroundings: what may follow ``<tool_call>``, the call itself, and its end."""

from __future__ import annotations

from strata_pack.parsing.content import NEWLINES, SpanLookout
from strata_pack.parsing.events import Event, ToolCall, new_id
from strata_pack.parsing.fences import MarkdownTracker
from strata_pack.parsing.json_call import JsonCall
from strata_pack.parsing.machine import ParserState
from strata_pack.parsing.places import ReaderStatus
from strata_pack.parsing.tags import INVISIBLE
from strata_pack.parsing.thinking import ThinkingStates
from strata_pack.parsing.tokens import Token
from strata_pack.parsing.tool_call import XmlCall


class CallStates(ThinkingStates):
    """The states from ``<tool_call>`` to the text after the call, in the thinking and in the answer."""

    def _in_opener(self, text: str, pos: int) -> int:
        """After ``<tool_call>``: a call must follow, after white space and invisible characters."""
        end = self._hold_space(text, pos, INVISIBLE)
        if end == len(text):
            return end
        if text[end] == "{" and self._reads_json():
            self._opener = self._take_held()
            self._reader = JsonCall(self.dialect, self._spelling)
            self._state = ParserState.CALL
            return end
        token = Token.TEXT if self._format == "json" else self._header_at(text, end)
        if token is Token.OPEN:
            return self._wait(text, end)
        if token is Token.FUNCTION:
            self._opener = self._take_held()
            self._open_call(bare=False)
            return end
        self._reject_opener()
        return end

    def _header_at(self, text: str, pos: int) -> Token:
        """Return FUNCTION if a function's header begins here; in the answer also a misspelt header of a declared
        name."""
        opener = self._function_open
        if not opener:
            return self._tags.read_header(text, pos).token
        if text.startswith(opener, pos):
            return Token.FUNCTION
        if text[pos:] in self._beginnings[opener]:
            return Token.OPEN
        if self._thinking:
            return Token.TEXT
        tag = self._tags.read(text, pos, ())
        if tag.token is Token.TEXT:
            tag = self._tags.read_like(text, pos, (), self._functions, due=True)
        names_a_tool = tag.token is Token.FUNCTION_LIKE or (
            tag.token is Token.PARAMETER and tag.name in self._functions
        )
        return Token.FUNCTION if names_a_tool else Token.OPEN if tag.token is Token.OPEN else Token.TEXT

    def _reads_json(self) -> bool:
        implicit = self._thinking and self._policy != "any"
        return self._format == "json" or (self._format == "auto" and not implicit)

    def _reject_opener(self) -> None:
        text = self._take_held()
        if self._strict.size:
            self._strict.write(text)
            self._refuse()
            return
        if self._thinking:
            self.counters.rejected_candidates["no_function"] += 1
        else:
            self._wrapped_prose = self._wrapped_prose or "\n" in text
        self._ticks = 0
        self._begin_text()
        self._plain(text)

    def _open_call(self, *, bare: bool) -> None:
        stream = self._stream_tools and not self._thinking and not self._ticks
        self._reader = XmlCall(
            self._functions,
            new_id(),
            self._tags,
            self._spelling,
            bare=bare,
            stream=stream,
            in_thinking=self._thinking or self._think_close_due,
        )
        self._state = ParserState.CALL

    def _in_call(self, text: str, pos: int) -> int:
        reader = self._reader
        if reader is None:
            return pos
        pos = reader.feed(text, pos)
        if reader.status is ReaderStatus.READING:
            return self._wait(text, pos)
        self._leave_call(reader)
        return pos

    def _leave_call(self, reader: XmlCall | JsonCall) -> None:
        if reader.status is ReaderStatus.FAILED:
            self._give_back(reader)
        elif self._thinking and self._policy == "strict" and not self._granted:
            self._hold_strictly(reader)
        elif self._ticks and not reader.function_follows:
            self._state = ParserState.AFTER_SPAN
            self._lookout = SpanLookout(self._ticks)
            for text in reader.again:
                self._read_again(text)
        else:
            self._deliver(reader)

    def _give_back(self, reader: XmlCall | JsonCall) -> None:
        """Release the held text, which is not a call; in the thinking as if it had never been held."""
        self._reader = None
        self._ticks = 0
        self.counters.unfinished_calls += reader.unfinished
        text = self._opener + reader.text()
        if self._strict.size:
            self._strict.write(text)
            self._refuse()
        elif self._thinking:
            if not reader.unfinished:
                self.counters.rejected_candidates["no_function"] += 1
            self._stay_reasoning(text)
        else:
            self._state = ParserState.CONTENT
            self._out.extend(reader.events)
            if reader.announced:
                self._content.call()
                self._last = text
                self._tracker.feed(text)  # the text after it is read as if this text had been content
            else:
                self._answer(text)
        for text in reader.again:
            self._read_again(text)

    def _deliver(self, reader: XmlCall | JsonCall) -> None:
        calls = reader.calls
        if self._thinking:
            self._thinking = False
            self._think_close_due = True
            self._stranded.finish()
            self._tracker = MarkdownTracker(spans=True)
            self.counters.implicit_ends += 1
        counters = self.counters
        counters.implicit_calls += len(calls) * self._think_close_due
        counters.undeclared_calls += sum(self._tools_known and call.name not in self._functions for call in calls)
        counters.coercion_failures += reader.coercion_failures
        counters.dropped_text += reader.dropped_text
        counters.suspect_values += len(reader.suspects)
        counters.suspect_parameters += reader.suspects
        self._content.call()
        self._last = ">"
        self._tracker.feed("<")
        self._wrapped_prose = False
        if reader.announced:
            self._out.extend(reader.events)
        else:
            for call in calls:
                self._out.extend(_call_events(call, stream=self._stream_tools))
        self._reader = None
        if reader.function_follows:
            self._opener = ""
            self._open_call(bare=False)
            return
        self._state = ParserState.AFTER_CALL
        for text in reader.again:
            self._read_again(text)

    def _after_call(self, text: str, pos: int) -> int:
        """Absorb a repeated or orphan ``</tool_call>``, and the ``</think>`` of a thinking that a call ended."""
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        for tag, due in ((self._call_close, True), (self._think_close, self._think_close_due)):
            if due and text.startswith(tag, end):
                if any(newline in self._take_held() for newline in NEWLINES):
                    self._content.dropped_newline()
                if tag == self._think_close:
                    self._after_think_close(second=True)
                return end + len(tag)
            if due and text[end:] in self._beginnings[tag]:
                return self._wait(text, end)
        self._state = ParserState.CONTENT
        self._answer(self._take_held())
        return end

    # The policy "strict": everything from the call on is held until the end of the thinking or of the reply.

    def _hold_strictly(self, reader: XmlCall | JsonCall) -> None:
        self._strict.write(self._opener + reader.text())
        self._reader = None
        if self._tools_known and any(call.name not in self._functions for call in reader.calls):
            self._refuse()
            reader.again.append(reader.half_closer)
        elif reader.function_follows:
            self._strict.write("".join(reader.again))
            self._opener = ""
            self._open_call(bare=False)
            return
        else:
            self._state = ParserState.STRICT
        for text in reader.again:
            self._read_again(text)

    def _in_strict(self, text: str, pos: int) -> int:
        """After a call that ends the thinking if only calls follow."""
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        for tag in (self._call_open, self._call_close, self._think_close):
            if text.startswith(tag, end):
                self._strict.write(self._take_held())
                if tag == self._call_open:
                    self._held.write(tag)
                    self._state = ParserState.OPENER
                else:
                    self._strict.write(tag)
                    self._state = ParserState.STRICT if tag == self._call_close else ParserState.TO_THE_END
                return end + len(tag)
            if text[end:] in self._beginnings[tag]:
                return self._wait(text, end)
        self._refuse()
        return end

    def _to_the_end(self, text: str, pos: int) -> int:
        """After the end of that thinking: only the finish reason is missing."""
        self._strict.write(text[pos:])
        return len(text)

    def _refuse(self) -> None:
        self._stay_reasoning(self._take_strict())

    def _grant(self) -> None:
        """Read the held text again, now as a call that ends the thinking."""
        text = self._take_strict()
        self._granted = True
        self._held.write(self._call_open)
        self._state = ParserState.OPENER
        self._read_again(text[len(self._call_open) :])

    def _take_strict(self) -> str:
        text = self._strict.text() + self._take_held()
        self._strict.clear()
        return text


def _call_events(call: ToolCall, *, stream: bool) -> list[Event]:
    """Return the events of a complete call."""
    whole = Event("tool_call", "", call)
    if not stream:
        return [whole]
    start = ToolCall(call.name, {}, call.id)
    return [Event("tool_start", "", start), Event("tool_args", call.arguments_json, start), whole]

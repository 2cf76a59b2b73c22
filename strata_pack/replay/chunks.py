"""Assembles replies from several records: streams, and sessions with one line for each part of a turn.

``Chunks`` keeps a bounded number of incomplete replies; beyond that, it returns the oldest as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from strata_pack.replay.messages import as_list, as_string, message_turn
from strata_pack.replay.replies import RecordedTurn, text_of
from strata_pack.replay.shapes import items_turn, turns_in

OPEN_LIMIT = 256
"""Maximum number of incomplete replies: more than the concurrent streams of a log."""
CODEX = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted", "world_state"})
ITEMS = frozenset(
    {
        *("reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *("local_shell_call", "local_shell_call_output", "web_search_call"),
    }
)
ANTHROPIC = frozenset(
    {
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop", "ping", "error"),
    }
)
ITEM_CONTENT = frozenset({"input_text", "output_text", "summary_text", "reasoning_text"})


@dataclass
class _Reply:
    """A reply that is being assembled."""

    line: int
    model: str | None = None
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: dict[Any, list[str]] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    """Arguments that were recorded as a whole."""
    finish_reason: str | None = None
    tools: tuple[Any, ...] | None = None
    items: list[Any] = field(default_factory=list)

    def turn(self) -> RecordedTurn:
        reasoning = "".join(self.reasoning)
        calls = (*("".join(parts) for parts in self.calls.values()), *self.values)
        return RecordedTurn(
            reasoning,
            "".join(self.content),
            calls,
            self.finish_reason,
            self.model,
            self.tools,
            raw=not reasoning,
            line=self.line,
        )


def _key(value: Any) -> str | int | None:
    """Return ``value`` if it can identify a reply or call, else ``None``."""
    return value if isinstance(value, (str, int)) else None


class Chunks:
    """Assembles replies. Call ``feed`` with each record in order, then ``finish``."""

    def __init__(self) -> None:
        self._open: dict[Any, _Reply] = {}
        self._codex_model: str | None = None

    def feed(self, record: Mapping[str, Any], event: str | None = None, line: int = 0) -> list[RecordedTurn] | None:
        """Return the replies that ``record`` completes; None if it is not part of a reply."""
        kind = as_string(record.get("type", event))
        for handler in (self._openai, self._anthropic, self._responses, self._ollama, self._claude, self._codex):
            found = handler(record, kind, line)
            if found is not None:
                return found
        return self._cline(record, kind, line)

    def finish(self) -> list[RecordedTurn]:
        """Return the incomplete replies at the end of the log."""
        return [turn for key in list(self._open) for turn in self._close(key)]

    def _reply(self, key: Any, line: int) -> _Reply:
        if key not in self._open:
            self._open[key] = _Reply(line)
        return self._open[key]

    def _overflow(self) -> list[RecordedTurn]:
        return self._close(next(iter(self._open))) if len(self._open) > OPEN_LIMIT else []

    def _close(self, key: Any) -> list[RecordedTurn]:
        reply = self._open.pop(key, None)
        if reply is None:
            return []
        if reply.items:
            turn = items_turn(reply.items)
            return [] if turn is None else [replace(turn, model=reply.model, line=reply.line)]
        if not (reply.reasoning or reply.content or reply.calls or reply.values or reply.finish_reason):
            return []
        return [reply.turn()]

    # Streams.

    def _openai(self, record: Mapping[str, Any], _kind: str | None, line: int) -> list[RecordedTurn] | None:
        choices = record.get("choices")
        if not isinstance(choices, list):
            return None
        streamed = record.get("object") == "chat.completion.chunk" or any(
            isinstance(choice, dict) and isinstance(choice.get("delta"), dict) for choice in choices
        )
        text = record.get("object") == "text_completion" and any(
            isinstance(choice, dict)
            and (choice.get("finish_reason") is None or self._text_key(record, choice) in self._open)
            for choice in choices
        )
        if not (streamed or text):
            return None
        ended: list[RecordedTurn] = []
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            key = self._text_key(record, choice)
            reply = self._reply(key, line)
            reply.model = reply.model or as_string(record.get("model"))
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._delta(reply, delta)
            reply.content.append(as_string(choice.get("text")) or "")
            if isinstance(choice.get("finish_reason"), str):
                reply.finish_reason = choice["finish_reason"]
                ended += self._close(key)
        return ended + self._overflow()

    @staticmethod
    def _text_key(record: Mapping[str, Any], choice: Mapping[str, Any]) -> Any:
        return "openai", _key(record.get("id")), _key(choice.get("index", 0))

    @staticmethod
    def _delta(reply: _Reply, delta: Mapping[str, Any]) -> None:
        for key in ("reasoning_content", "reasoning", "thinking"):
            if isinstance(delta.get(key), str):
                reply.reasoning.append(delta[key])
                break
        else:
            for part in as_list(delta.get("reasoning_details")):
                if isinstance(part, dict):
                    reply.reasoning.append(as_string(part.get("text")) or as_string(part.get("summary")) or "")
        reply.content.append(text_of(delta.get("content")))
        for place, call in enumerate(as_list(delta.get("tool_calls"))):
            if isinstance(call, dict):
                function = call.get("function")
                arguments = function.get("arguments") if isinstance(function, dict) else None
                reply.calls.setdefault(_key(call.get("index", place)), []).append(as_string(arguments) or "")

    def _anthropic(self, record: Mapping[str, Any], kind: str | None, line: int) -> list[RecordedTurn] | None:
        if kind not in ANTHROPIC:
            return None
        key = "anthropic"
        if kind == "message_start":
            ended = self._close(key)
            message = record.get("message")
            self._reply(key, line).model = as_string(message.get("model")) if isinstance(message, dict) else None
            return ended
        if kind == "message_stop":
            return self._close(key)
        if key not in self._open:
            return [] if kind in ("ping", "error") or "index" in record else None
        reply = self._open[key]
        block, delta = record.get("content_block"), record.get("delta")
        if isinstance(block, dict):
            if block.get("type") == "tool_use":
                reply.calls.setdefault(_key(record.get("index")), [])
            reply.reasoning.append(text_of(block.get("thinking")))
            reply.content.append(text_of(block.get("text")))
        if isinstance(delta, dict):
            reply.reasoning.append(text_of(delta.get("thinking")))
            reply.content.append(text_of(delta.get("text")))
            if isinstance(delta.get("partial_json"), str):
                reply.calls.setdefault(_key(record.get("index")), []).append(delta["partial_json"])
            reply.finish_reason = as_string(delta.get("stop_reason")) or reply.finish_reason
        return []

    def _responses(self, record: Mapping[str, Any], kind: str | None, line: int) -> list[RecordedTurn] | None:
        if not (isinstance(kind, str) and kind.startswith("response.")):
            return None
        key = "responses"
        if kind == "response.created":
            ended = self._close(key)
            self._reply(key, line)
            return ended
        response = record.get("response")
        if kind in ("response.completed", "response.incomplete", "response.failed", "response.done"):
            started = self._open.pop(key, None)
            found = turns_in(response) if isinstance(response, dict) else None
            start = line if started is None else started.line
            if not found and started is not None:
                return [started.turn()] if started.reasoning or started.content or started.calls else []
            return [replace(turn, line=start) for turn in found or ()]
        reply = self._reply(key, line)
        delta = as_string(record.get("delta")) or ""
        if "reasoning" in kind and kind.endswith(".delta"):
            reply.reasoning.append(delta)
        elif kind == "response.output_text.delta":
            reply.content.append(delta)
        elif kind == "response.function_call_arguments.delta":
            reply.calls.setdefault(_key(record.get("output_index", record.get("item_id"))), []).append(delta)
        return []

    def _ollama(self, record: Mapping[str, Any], _kind: str | None, line: int) -> list[RecordedTurn] | None:
        done, message = record.get("done"), record.get("message")
        key = "ollama", _key(record.get("model"))
        if not isinstance(done, bool) or (done and key not in self._open):
            return None
        if not isinstance(message, dict) and not isinstance(record.get("response"), str):
            return None
        reply = self._reply(key, line)
        reply.model = as_string(record.get("model"))
        source: Mapping[str, Any] = message if isinstance(message, dict) else record
        reply.reasoning.append(text_of(source.get("thinking")))
        reply.content.append(text_of(source.get("content", record.get("response"))))
        if isinstance(message, dict):
            reply.values += message_turn(message).calls
        if not done:
            return []
        reply.finish_reason = as_string(record.get("done_reason"))
        return self._close(key)

    # Sessions.

    def _claude(self, record: Mapping[str, Any], kind: str | None, line: int) -> list[RecordedTurn] | None:
        """Read a line of Claude Code, which writes one line for each block; the lines of one message share its id."""
        message = record.get("message")
        if kind != "assistant" or not isinstance(message, dict) or not isinstance(message.get("content"), list):
            return None
        key = "claude", _key(message.get("id")) or line
        reply = self._reply(key, line)
        turn = message_turn(message)
        reply.model = turn.model or reply.model
        reply.reasoning.append(turn.reasoning)
        reply.content.append(turn.content)
        reply.values += turn.calls
        reply.finish_reason = turn.finish_reason or reply.finish_reason
        return self._overflow()

    def _codex(self, record: Mapping[str, Any], kind: str | None, line: int) -> list[RecordedTurn] | None:
        """Read a line of Codex, which writes one line for each item, since 2025 inside a ``payload``."""
        payload = record.get("payload")
        if kind in CODEX and isinstance(payload, dict):
            if kind in ("turn_context", "session_meta"):
                self._codex_model = as_string(payload.get("model")) or self._codex_model
            return self._item(payload, line) if kind == "response_item" else []
        if record.get("record_type") == "state":
            return []
        content = record.get("content")
        parts = content if isinstance(content, list) else []
        is_message = kind == "message" and any(
            isinstance(part, dict) and part.get("type") in ITEM_CONTENT for part in parts
        )
        return self._item(record, line) if is_message or (kind in ITEMS and "choices" not in record) else None

    def _item(self, item: Mapping[str, Any], line: int) -> list[RecordedTurn]:
        key = "codex"
        kind = str(item.get("type"))
        if kind.endswith("_output") or (kind == "message" and item.get("role") != "assistant"):
            return self._close(key)
        reply = self._reply(key, line)
        reply.model = self._codex_model
        reply.items.append(dict(item))
        return []

    def _cline(self, record: Mapping[str, Any], kind: str | None, line: int) -> list[RecordedTurn] | None:
        """Read an item of Cline's ``ui_messages.json``: a request, then the model's messages."""
        if kind not in ("say", "ask") or "ts" not in record:
            return None
        key, said = "cline", record.get("say") if kind == "say" else record.get("ask")
        if said == "api_req_started":
            ended = self._close(key)
            self._reply(key, line)
            return ended
        if key not in self._open or record.get("partial") is True:
            return []
        text = text_of(record.get("text"))
        if said == "reasoning":
            self._open[key].reasoning.append(text)
        elif said in ("text", "completion_result"):
            self._open[key].content.append(text)
        elif said in ("tool", "command", "use_mcp_server"):
            self._open[key].values.append(text)
        return []

"""Reads replies from the text logs of servers: llama-server's ``--verbose``, vLLM's logged requests and outputs.

llama-server writes the JSON of a response, or of each chunk of a stream, after a short prefix. vLLM writes the
generated text as a Python literal.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from strata_pack.parsing import thinking_open
from strata_pack.replay.replies import RecordedTurn
from strata_pack.replay.shapes import turns_in

_JSON = re.compile(r"(?:response:|to_send: data:|data stream, to_send:(?: data:)?|http response body:)\s*(\{.*\})\s*$")
_REQUEST = re.compile(r"Received request (?P<id>\S+?): prompt: (?P<rest>['\"].*)")
_RESPONSE = re.compile(
    r"Generated response (?P<id>\S+?)(?: \((?P<how>[^)]*)\))?: output: (?P<rest>['\"].*), output_token_ids: "
    r".*finish_reason: (?P<reason>\w+)"
)
_MODEL = re.compile(r"(?:served_model_name=|served model name[:=] ?|model=)'?\[?'?([\w./-]+)")
_LOG_LINE = re.compile(
    r"(?:\x1b\[[0-9;]*m)*(?:\(\w+[^)]*\) )?(?:(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)\b.*|"
    r"(?:\d+\.\d+\.\d+\.\d+ )?(?:[IWED] )?(?:srv|slot|que|main|build|system_info|llama_\w+|load\w*|print_info|"
    r"common_\w+|ggml_\w+|set_\w+|sched_\w+|init\w*|request|response|prompt|chat|Parsing|Parsed|~?llama\w*)\b.*)"
)
REMEMBERED = 4096
"""Maximum number of requests whose prompts' ends are kept."""


def _literal(text: str) -> str | None:
    """Return the value of the Python string literal at the start of ``text``."""
    quote = text[:1]
    match = re.match(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}", text, re.DOTALL) if quote in ("'", '"') else None
    if match is None:
        return None
    try:
        value = ast.literal_eval(match[0])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _reply_after_words(line: str) -> dict[str, Any] | None:
    """Return the reply in JSON at the end of any program's log line."""
    value = _object_after_words(line)
    return value if value is not None and ("choices" in value or turns_in(value)) else None


def _object_after_words(line: str) -> dict[str, Any] | None:
    begin, text = line.find("{"), line.rstrip()
    if begin < 1 or not text.endswith("}"):
        return None
    try:
        value = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class TextLines:
    """Finds replies in the lines of a text log. Call ``feed`` with each line in order."""

    def __init__(self) -> None:
        self._thinks: dict[str, bool] = {}
        self._model: str | None = None

    def feed(self, line: str) -> Iterator[RecordedTurn | dict[str, Any]] | None:
        """Return the turns of a line, or JSON objects with turns; None if it is not a line of a server's log."""
        found = self._found(line)
        if found:
            return iter(found)
        if _LOG_LINE.match(line):
            return iter(())
        value = _object_after_words(line)
        return None if value is None else iter((value,))

    def _found(self, line: str) -> list[RecordedTurn | dict[str, Any]]:
        body = _JSON.search(line)
        if body is not None:
            try:
                value = json.loads(body[1])
            except (ValueError, RecursionError):
                return []
            return [value] if isinstance(value, dict) else []
        request = _REQUEST.search(line)
        if request is not None:
            prompt = _literal(request["rest"])
            if prompt is not None:
                while len(self._thinks) >= REMEMBERED:
                    self._thinks.pop(next(iter(self._thinks)))
                self._thinks[request["id"]] = thinking_open(prompt)
            return []
        response = _RESPONSE.search(line)
        if response is not None:
            if "delta" in (response["how"] or ""):
                return []
            text = _literal(response["rest"])
            if text is None:
                return []
            reason = None if response["reason"] == "None" else response["reason"]
            thinks = self._thinks.pop(response["id"], None)
            return [RecordedTurn(content=text, finish_reason=reason, model=self._model, raw=True, thinks=thinks)]
        value = _reply_after_words(line)
        if value is not None:
            return [value]
        model = _MODEL.search(line) if "model" in line and self._model is None else None
        if model is not None and "vllm" in line.lower():
            self._model = model[1]
        return []

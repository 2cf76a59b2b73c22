"""Forty logs, one a shape: each holds the same two replies, written as its maker writes them.

Reply one has a whole call stranded in its thinking and no answer. Reply two has thinking and an answer.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

CALL = "<tool_call>\n<function=run>\n<parameter=code>\nprint(1)\n</parameter>\n</function>\n</tool_call>"
LOST = f"I run it.\n\n{CALL}"
THOUGHT, ANSWER = "Easy.", "It is 2."
MODEL = "qwen"
INLINE = (f"<think>\n{LOST}", f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}")


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def pretty(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def sse(*records: Any, named: bool = False) -> bytes:
    parts = [(f"event: {record['type']}\n" if named else "") + f"data: {json.dumps(record)}\n\n" for record in records]
    return "".join(parts).encode()


def chat(reasoning: str, content: str, key: str = "reasoning_content", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", key: reasoning, "content": content, **more}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


CHATS = [chat(LOST, ""), chat(THOUGHT, ANSWER)]


def chunk(number: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": f"c{number}", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}


def chunks() -> list[dict[str, Any]]:
    found = [chunk(1, {"role": "assistant", "content": None})]
    found += [chunk(1, {"reasoning_content": LOST[i : i + 7]}) for i in range(0, len(LOST), 7)]
    found += [chunk(1, {}, "stop")]
    found += [chunk(2, {"reasoning_content": THOUGHT}), chunk(2, {"content": ANSWER[:3]})]
    found += [chunk(2, {"content": ANSWER[3:]}), chunk(2, {}, "stop")]
    return [*found, {"id": "c2", "object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": {}}]


def anthropic(blocks: list[dict[str, Any]], number: int = 1) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": blocks,
        "stop_reason": "end_turn",
    }


def thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "s"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


BLOCKS = ([thinking(LOST)], [thinking(THOUGHT), text(ANSWER)])
ANTHROPIC = [anthropic(blocks, number) for number, blocks in enumerate(BLOCKS, 1)]


def anthropic_stream(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": MODEL, "content": []}}]
    for index, block in enumerate(blocks):
        key = "thinking" if block["type"] == "thinking" else "text"
        events.append({"type": "content_block_start", "index": index, "content_block": {"type": key, key: ""}})
        delta = {"type": f"{key}_delta", key: block[key]}
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}
    return [*events, end, {"type": "message_stop"}]


def claude_line(kind: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "uuid": "u", "sessionId": "s", "message": message}


def claude_code() -> list[dict[str, Any]]:
    user = {"role": "user", "content": "Run it"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": CALL}]}
    second = [claude_line("assistant", anthropic([block], 2)) for block in BLOCKS[1]]
    return [
        {"type": "summary", "summary": "A session", "leafUuid": "u"},
        claude_line("user", user),
        claude_line("assistant", ANTHROPIC[0]),
        claude_line("user", result),
        *second,
        {"type": "system", "uuid": "u", "sessionId": "s", "content": "done"},
    ]


def item_reasoning(value: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": value}]}


def item_message(value: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": value}]}


ITEMS = ([item_reasoning(LOST)], [item_reasoning(THOUGHT), item_message(ANSWER)])


def response(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": MODEL, "output": items}


RESPONSES = [response(items) for items in ITEMS]


def response_stream(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "response.created", "response": {"id": "r", "output": []}},
        {"type": "response.reasoning_text.delta", "item_id": "i", "delta": "ignored, the whole comes last"},
        {"type": "response.completed", "response": response(items)},
    ]


def codex(wrap: bool) -> list[dict[str, Any]]:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Run it"}]}
    output = {"type": "function_call_output", "call_id": "c", "output": CALL}
    items = [user, *ITEMS[0], output, *ITEMS[1]]
    if not wrap:
        return [{"id": "s", "timestamp": "t", "instructions": None}, {"record_type": "state"}, *items]
    head: list[dict[str, Any]] = [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "s"}},
        {"timestamp": "t", "type": "turn_context", "payload": {"model": MODEL}},
    ]
    event = {"timestamp": "t", "type": "event_msg", "payload": {"type": "agent_reasoning", "text": LOST}}
    return [*head, *({"timestamp": "t", "type": "response_item", "payload": item} for item in items), event]


def ollama(reasoning: str, content: str, done: bool = True) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "thinking": reasoning}
    end = {"done_reason": "stop"} if done else {}
    return {"model": MODEL, "created_at": "t", "message": message, "done": done, **end}


def ollama_stream() -> list[dict[str, Any]]:
    return [
        *(ollama(LOST[i : i + 9], "", done=False) for i in range(0, len(LOST), 9)),
        ollama("", ""),
        ollama(THOUGHT, "", done=False),
        ollama("", ANSWER, done=False),
        ollama("", ""),
    ]


def har_entry(body: str, *, packed: bool = False) -> dict[str, Any]:
    content = {"mimeType": "application/json", "text": body}
    if packed:
        content = {"text": base64.b64encode(body.encode()).decode(), "encoding": "base64"}
    request = {"url": "http://127.0.0.1/v1/chat/completions", "postData": {"text": json.dumps({"model": MODEL})}}
    return {"request": request, "response": {"status": 200, "content": content}}


def har() -> dict[str, Any]:
    first = har_entry(json.dumps(CHATS[0]), packed=True)
    second = har_entry(sse(*[one for one in chunks() if one["id"] == "c2"]).decode())
    page = har_entry("<html>not a reply</html>")
    return {"log": {"version": "1.2", "pages": [{"id": "p"}], "entries": [first, page, second]}}


def conversation() -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Run it"},
        {"role": "assistant", "content": "", "reasoning_content": LOST, "model": MODEL},
        {"role": "tool", "content": CALL},
        {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT, "model": MODEL},
    ]


def cline_history() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [text("Run it")]},
        {"role": "assistant", "content": list(BLOCKS[0])},
        {"role": "user", "content": [text("[result]")]},
        {"role": "assistant", "content": list(BLOCKS[1])},
    ]


def cline_screen() -> list[dict[str, Any]]:
    say = [
        ("text", "Run it"),
        ("api_req_started", "{}"),
        ("reasoning", LOST),
        ("api_req_started", "{}"),
        ("reasoning", THOUGHT),
        ("text", ANSWER),
    ]
    return [{"ts": n, "type": "say", "say": kind, "text": value} for n, (kind, value) in enumerate(say)]


def opencode() -> list[dict[str, Any]]:
    def message(role: str, *parts: tuple[str, str]) -> dict[str, Any]:
        info = {"id": "m", "role": role, "modelID": MODEL, "finish": "stop"}
        return {"info": info, "parts": [{"type": kind, "text": value} for kind, value in parts]}

    return [
        message("user", ("text", "Run it")),
        message("assistant", ("reasoning", LOST)),
        message("assistant", ("reasoning", THOUGHT), ("text", ANSWER)),
    ]


def langfuse(output: Any) -> dict[str, Any]:
    return {"id": "o", "type": "GENERATION", "traceId": "t", "model": MODEL, "input": [], "output": output}


MESSAGES = [one["choices"][0]["message"] for one in CHATS]


def otel_messages() -> list[str]:
    def message(*parts: tuple[str, str]) -> str:
        shown = [{"type": kind, "content": value} for kind, value in parts]
        return json.dumps([{"role": "assistant", "parts": shown, "finish_reason": "stop"}])

    return [message(("reasoning", LOST)), message(("reasoning", THOUGHT), ("text", ANSWER))]


def otlp() -> dict[str, Any]:
    spans = [
        {
            "name": "chat qwen",
            "attributes": [
                {"key": "gen_ai.request.model", "value": {"stringValue": MODEL}},
                {"key": "gen_ai.output.messages", "value": {"stringValue": value}},
            ],
        }
        for value in otel_messages()
    ]
    spans.append({"name": "GET /", "attributes": [{"key": "http.route", "value": {"stringValue": "/"}}]})
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


def otel_flat() -> list[dict[str, Any]]:
    return [
        {"name": "chat", "attributes": {"gen_ai.request.model": MODEL, "gen_ai.completion.0.content": inline}}
        for inline in INLINE
    ]


def otel_logs() -> dict[str, Any]:
    records = [
        {
            "eventName": "gen_ai.choice",
            "body": {
                "kvlistValue": {
                    "values": [
                        {"key": "index", "value": {"intValue": "0"}},
                        {
                            "key": "message",
                            "value": {
                                "kvlistValue": {
                                    "values": [
                                        {"key": key, "value": {"stringValue": value}} for key, value in message.items()
                                    ]
                                }
                            },
                        },
                    ]
                }
            },
        }
        for message in MESSAGES
    ]
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


def llama_log() -> bytes:
    rows = ["build: 11549 (abc) with cc", "main: server is listening", "srv  update_slots: all slots are idle"]
    rows += [f"srv  log_server_r: response: {json.dumps(CHATS[0])}", "slot release: id 0 | task 5 | stop"]
    rows += [f"srv    operator(): http: streamed chunk, to_send: data: {json.dumps(one)}" for one in chunks()[-5:]]
    return ("\n".join(rows) + "\n").encode()


def vllm_log() -> bytes:
    start = "INFO 11-30 08:00:00 [logger.py:40]"
    prompt = "<|im_start|>user\nRun it<|im_end|>\n<|im_start|>assistant\n<think>\n"
    rows = [f"{start} vLLM API server version 0.11, served_model_name=['{MODEL}']"]
    for number, generated in enumerate((LOST, f"{THOUGHT}\n</think>\n\n{ANSWER}")):
        rows.append(f"{start} Received request chatcmpl-{number}: prompt: {prompt!r}, params: SamplingParams(n=1)")
        rows.append(
            f"{start} Generated response chatcmpl-{number} (streaming complete): output: {generated!r}, "
            "output_token_ids: None, finish_reason: stop"
        )
    return ("\n".join(rows) + "\n").encode()


def completions() -> list[dict[str, Any]]:
    prompt = "<|im_start|>assistant\n<think>\n"
    return [
        {"model": MODEL, "object": "text_completion", "choices": [{"text": INLINE[0], "finish_reason": "stop"}]},
        {
            "request": {"model": MODEL, "prompt": prompt},
            "response": {
                "object": "text_completion",
                "choices": [{"text": f"{THOUGHT}\n</think>\n\n{ANSWER}", "finish_reason": "stop"}],
            },
        },
    ]


def completion_native() -> list[dict[str, Any]]:
    prompt = "<|im_start|>assistant\n<think>\n"
    texts = (LOST, f"{THOUGHT}\n</think>\n\n{ANSWER}")
    return [{"content": one, "stop": True, "stop_type": "eos", "prompt": prompt, "model": MODEL} for one in texts]


def batch(one: dict[str, Any]) -> dict[str, Any]:
    return {"id": "b", "custom_id": "c", "response": {"status_code": 200, "body": one}, "error": None}


LOGS: dict[str, bytes] = {
    "openai.jsonl": lines(*CHATS),
    "openai-wrapped.jsonl": lines(*({"request": {"model": MODEL}, "response": one} for one in CHATS)),
    "openai-inline.jsonl": lines(*(chat("", inline) for inline in INLINE)),
    "openai-array.json": json.dumps(CHATS).encode(),
    "openai-pretty-array.json": pretty(CHATS),
    "openai-pretty.json": pretty({"model": MODEL, "messages": conversation()}),
    "openai-batch.jsonl": lines(*map(batch, CHATS)),
    "openai-responses-batch.jsonl": lines(*map(batch, RESPONSES)),
    "openai-chunks.jsonl": lines(*chunks()),
    "openai-stream.txt": sse(*chunks()) + b"data: [DONE]\n\n",
    "openai-completions.jsonl": lines(*completions()),
    "openrouter.jsonl": lines(
        chat(LOST, "", "reasoning", reasoning_details=[{"type": "reasoning.text", "text": LOST}]),
        chat("", ANSWER, "reasoning", reasoning_details=[{"type": "reasoning.text", "text": THOUGHT}]),
    ),
    "anthropic.jsonl": lines(*ANTHROPIC),
    "anthropic-stream.txt": b"".join(sse(*anthropic_stream(blocks), named=True) for blocks in BLOCKS),
    "anthropic-events.jsonl": lines(*(event for blocks in BLOCKS for event in anthropic_stream(blocks))),
    "claude-code.jsonl": lines(*claude_code()),
    "responses.jsonl": lines(*RESPONSES),
    "responses-pretty.json": pretty(RESPONSES),
    "responses-stream.txt": b"".join(sse(*response_stream(items), named=True) for items in ITEMS),
    "codex-rollout.jsonl": lines(*codex(wrap=True)),
    "codex-old.jsonl": lines(*codex(wrap=False)),
    "ollama.jsonl": lines(ollama(LOST, ""), ollama(THOUGHT, ANSWER)),
    "ollama-stream.jsonl": lines(*ollama_stream()),
    "ollama-generate.jsonl": lines(*({"model": MODEL, "response": inline, "done": True} for inline in INLINE)),
    "llama-completion.jsonl": lines(*completion_native()),
    "llama-server.log": llama_log(),
    "vllm.log": vllm_log(),
    "archive.har": pretty(har()),
    "archive-one-line.har": json.dumps(har()).encode(),
    "cline-history.json": json.dumps(cline_history()).encode(),
    "cline-screen.json": json.dumps(cline_screen()).encode(),
    "opencode.json": pretty({"info": {"id": "s"}, "messages": opencode()}),
    "opencode.jsonl": lines(*opencode()),
    "litellm.jsonl": lines(*({"model": MODEL, "messages": [], "response": one} for one in CHATS)),
    "litellm-string.jsonl": lines(*({"model": MODEL, "messages": [], "response": json.dumps(one)} for one in CHATS)),
    "litellm-text.jsonl": lines(*({"model": MODEL, "messages": [], "response": inline} for inline in INLINE)),
    "langfuse.jsonl": lines(*map(langfuse, MESSAGES), {"id": "s", "type": "SPAN", "traceId": "t", "output": "x"}),
    "langfuse-strings.json": pretty({"observations": [langfuse(json.dumps(one)) for one in MESSAGES]}),
    "otel.json": pretty(otlp()),
    "otel-flat.jsonl": lines(*otel_flat()),
    "otel-logs.jsonl": lines(otel_logs()),
    "conversation.json": pretty(conversation()),
    "langfuse-listed.json": pretty({"data": [langfuse(one) for one in MESSAGES], "meta": {"page": 1, "limit": 50}}),
    "listed-after-a-span.json": json.dumps({"data": [{"type": "SPAN", "output": None}, *CHATS]}).encode(),
    "after-words.log": b"".join(b"2026-11-30 10:00:00 INFO reply: " + lines(one) for one in CHATS),
    "powershell.jsonl": lines(*CHATS).decode().replace("\n", "\r\n").encode("utf-16"),
    "powershell-big-endian.json": b"\xfe\xff" + pretty(CHATS).decode().encode("utf-16-be"),
    "packed-without-a-name": gzip.compress(lines(*CHATS)),
}

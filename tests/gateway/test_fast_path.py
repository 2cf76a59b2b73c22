"""The short way of plain text: what it sends is what the long way would send, and it leaves all else to that."""

from __future__ import annotations

import json

import pytest

from strata_pack.gateway.api.chat.reply import ChatWriter
from strata_pack.gateway.api.messages.reply import MessagesWriter
from strata_pack.gateway.fast_path import FastPath, PlainText
from strata_pack.gateway.reply import Writer
from strata_pack.parsing import Event, EventKind

WRITERS = {
    "chat": lambda: ChatWriter("r", "m", include_usage=False, show_extra=False),
    "messages": lambda: MessagesWriter("r", "m", show_extra=False),
}


def chunk(text: str | bytes, *, longer: int = 0) -> bytes:
    """Return an event as llama-server writes it, in a chunk."""
    raw = text if isinstance(text, bytes) else json.dumps(text, ensure_ascii=False)[1:-1].encode()
    event = (
        b'data: {"index":0,"content":"' + raw + b'","tokens":[7],"stop":false,"id_slot":-1,"tokens_predicted":3,'
        b'"tokens_evaluated":9}\n\n'
    )
    return b"%x\r\n%b\r\n" % (len(event) + longer, event)


@pytest.mark.parametrize("kind", ["reasoning", "content"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_filled_frame_is_the_event_of_its_text(name: str, kind: EventKind) -> None:
    writer: Writer = WRITERS[name]()
    writer.delta(0, [Event(kind, "first", None)], None, {})
    frame = writer.frame(0, kind)
    assert frame is not None
    assert " héllo".encode().join(frame) == writer.delta(0, [Event(kind, " héllo", None)], None, {})


@pytest.mark.parametrize("name", WRITERS)
def test_there_is_no_frame_before_the_first_event(name: str) -> None:
    writer: Writer = WRITERS[name]()
    assert writer.frame(0, "content") is None


CHUNKS = {
    "a word": (chunk(" word"), "[ word]"),
    "two chunks": (chunk(" a") + chunk(" 漢"), "[ a 漢]"),
    "a line end": (chunk("a\n"), ""),
    "a quote": (chunk('"'), ""),
    "a tag": (chunk("a<b"), ""),
    "a backtick": (chunk("`"), ""),
    "no text": (chunk(""), ""),
    "half a character": (chunk(b"\xe6\xbc"), ""),
    "a chunk of another length": (chunk("a", longer=1), ""),
    "more after it": (chunk("a") + b"7", ""),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_only_whole_chunks_of_plain_text_are_sent(name: str) -> None:
    chunks, sent = CHUNKS[name]
    out: list[bytes] = []
    way = FastPath(
        lambda: True, lambda _: None, lambda _: (b"[", b"]"), lambda data: not out.append(data), lambda *_: 0
    )
    plain = PlainText(way, lambda: "content")
    assert plain.take(chunks) is bool(sent)
    assert b"".join(out).decode() == sent

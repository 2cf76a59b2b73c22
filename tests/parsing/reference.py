"""The rules without any call, as plain string operations on the whole text: an oracle for requests without tools."""

from __future__ import annotations

import re


def without_calls(text: str, *, thinking: bool) -> tuple[str, str]:
    """Return reasoning and content of ``text`` where nothing may be a call."""
    lead = re.match(r"[ \t\r\n]*<think>(?:\r?\n)?", text)
    if lead:
        text, thinking = text[lead.end() :], True
    if not thinking:
        return "", text
    for close in re.finditer(r"</think>", text):
        if text[close.start() - 1 : close.start()] == "`" and text[close.end() : close.end() + 1] == "`":
            continue
        answer = text[close.end() :].lstrip("\r\n")
        second = re.match(r"[ \t\r\n]*</think>[\r\n]*", answer)
        return text[: close.start()], answer[second.end() :] if second else answer
    return text, ""

"""The pieces that generated texts are made of: all tags, whole and nearly whole calls, fences, and awkward text."""

from __future__ import annotations

from functools import cache

from strata_pack.parsing import DIALECTS

PIECES: tuple[str, ...] = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=save>",
    "<function=jobs>",
    "<function=other>",
    "<function=save\n",
    '<function="save">',
    "</function>",
    "</function_invocation>",
    "<parameter=text>",
    "<parameter=count>",
    "<parameter=unknown>",
    '<parameter name="note">',
    "<parameter=text=",
    "</parameter>",
    "\n</parameter1>\n",
    "\n</param",
    "/parameter>",
    "<parameter=text\n",
    "<param: note>",
    "<parameter=save>",
    "<func=save>",
    "</func>",
    "</toolcall>",
    " words\n",
    "<parameter=text>\n<parameter=text>\n",
    "\n</function>\n</parameter>\n</tool_call>",
    "<tool_call>\n<function=save>\n<parameter=text>\nvalue\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=jobs>\n</function>\n</tool_call>",
    "`x <tool_call><function=jobs></function>now</tool_call>",
    "`x <tool_call><function=save><parameter=text>v</parameter></function>now</tool_call>",
    "<tool_call><function=save><parameter=text>v</parameter></function>\n<parameter=save>\n<parameter=text>w",
    "\n<function=jobs></function>",
    "\n<tool_call>\n<function=save>\n<parameter=text>\n",
    "\n</parameter>\n</function>\n</tool_call>",
    '<tool_call>\n{"name": "save", "arguments": {"text": "</tool_call>"}}\n</tool_call>',
    '{"name": "save", "arguments": {"text": "x"}}',
    "{",
    "}",
    '"',
    "\\",
    "<",
    "</",
    "<tool",
    "\n",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    " ",
    "    ",
    "\t",
    "`",
    "``",
    "```",
    "```xml\n",
    "~~~",
    "> ",
    "- ",
    "1. ",
    "text",
    "12",
    "null",
    "True",
    "[1, 'a']",
    "é",
    "e\u0301",
    "👨\u200d👩\u200d👧",
    "\u2028",
    "\x00",
    "\ufdd0",
    "\ufdd1",
)


@cache
def pieces_of(dialect: str) -> tuple[str, ...]:
    """Return the pieces in the tags of ``dialect``."""
    letters = DIALECTS[dialect]
    return tuple(
        piece.replace("<tool_call>", letters.call_open).replace("</tool_call>", letters.call_close)
        .replace("<think>", letters.think_open).replace("</think>", letters.think_close)
        .replace("<parameter=text>", letters.parameter_open + "text" + letters.parameter_opened)
        .replace("<parameter=count>", letters.parameter_open + "count" + letters.parameter_opened)
        .replace("</parameter>", letters.parameter_close)
        .replace("<function=save>", letters.function_open + "save" + letters.function_opened)
        .replace("<function=jobs>", letters.function_open + "jobs" + letters.function_opened)
        .replace("</function>", letters.function_close)
        for piece in PIECES
    )  # fmt: skip

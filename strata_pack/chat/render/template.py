"""Renders a chat template to a prompt, exactly as Hugging Face transformers does.

A template is untrusted code. It is compiled once, for the sandbox of ``sandbox.py``, and every rendering has limits
(``RenderLimits``), so a malicious template raises a ``TemplateError`` and cannot hang the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata_pack.chat.render.budget import RenderLimits
from strata_pack.chat.render.failures import TemplateError, TemplateLimit, TemplateRefused
from strata_pack.chat.render.sandbox import compile_template, render_compiled
from strata_pack.chat.render.text import normalize_source, read_template
from strata_pack.files import sha256_text
from strata_pack.parsing.dialect import THINK_CLOSE, THINK_OPEN

__all__ = [
    "ChatTemplate",
    "RenderLimits",
    "TemplateError",
    "TemplateLimit",
    "TemplateRefused",
    "in_thinking",
    "normalize_source",
    "read_template",
]

Message = Mapping[str, Any]

ALWAYS_DEFINED: Mapping[str, Any] = {"documents": None, "add_generation_prompt": False}

TURN_START = "<|im_start|>"


class ChatTemplate:
    """A compiled chat template.

    ``source`` is used unchanged (``read_template`` normalizes files). Raises ``TemplateError`` if it is
    larger than ``limits.source_bytes`` or does not compile.
    """

    def __init__(
        self, source: str, *, limits: RenderLimits | None = None, bos_token: str = "", eos_token: str = ""
    ) -> None:
        self.source = source
        self.sha256 = sha256_text(source)
        self.limits = limits or RenderLimits()
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled = compile_template(source, self.limits)

    def render(
        self,
        /,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt for ``messages`` (objects with ``role``, ``content`` ...) and ``tools``.

        ``variables`` are the template's other inputs (``add_generation_prompt``, ``enable_thinking`` ...); a
        missing one is undefined in the template, which is not ``None``, except for those that transformers always
        defines (``ALWAYS_DEFINED``). Raises ``TemplateRefused`` with the template's own message if it calls
        ``raise_exception``, ``TemplateLimit`` if it exceeds ``limits``, and ``TemplateError`` with line and cause for
        any other failure.
        """
        values = {**ALWAYS_DEFINED, **self._tokens, **variables, "messages": messages, "tools": tools}
        return render_compiled(self._compiled, values, self.limits)

    def in_thinking(self, prompt: str) -> bool:
        """Return whether a generation after ``prompt`` starts inside the thinking (see the function
        ``in_thinking``)."""
        return in_thinking(prompt)


def in_thinking(prompt: str) -> bool:
    """Return whether a generation after ``prompt`` starts inside the thinking.

    Only the turn being generated matters: it is in the thinking if it begins with ``<think>`` and has no ``</think>``;
    tags in earlier messages of users or tools do not matter. In families without ``<|im_start|>`` the last ``<think>``
    of the prompt decides.
    """
    if TURN_START in prompt:
        turn = prompt[prompt.rfind(TURN_START) + len(TURN_START) :]
        return turn.startswith(f"assistant\n{THINK_OPEN}") and THINK_CLOSE not in turn
    return prompt.rfind(THINK_OPEN) > prompt.rfind(THINK_CLOSE)

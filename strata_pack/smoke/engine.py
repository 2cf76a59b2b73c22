"""A running llama.cpp server as a template engine for golden cases: ``POST /apply-template``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strata_pack.chat.template import TemplateError, TemplateRefused
from strata_pack.llama.answers import RequestRefused
from strata_pack.llama.client import LlamaClient

_RAISED = re.compile(r"Jinja Exception: (.*)", re.DOTALL)
"""How the server's message carries what a template says with ``raise_exception``."""


class LlamaServerEngine:
    """The engine of a server that is running; it renders the one template it was started with."""

    name = "llama-server"
    known_as = ("llama-server",)

    def __init__(self, client: LlamaClient) -> None:
        self._client = client
        self.version = client.props().build

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:  # noqa: ARG002 - the server has the source
        """Return the server's prompt; ``TemplateRefused`` with the template's own words, ``TemplateError`` otherwise.

        ``add_generation_prompt`` is a field of the request: among the template's variables the server overrules it.
        """
        values = dict(inputs)
        messages, tools = values.pop("messages", []), values.pop("tools", None)
        generation = bool(values.pop("add_generation_prompt", False))
        try:
            return self._client.apply_template(
                messages, tools, add_generation_prompt=generation, chat_template_kwargs=values
            )
        except RequestRefused as error:
            raised = _RAISED.search(error.message)
            if raised is not None:
                raise TemplateRefused(raised.group(1).strip()) from error
            raise TemplateError(error.message) from error

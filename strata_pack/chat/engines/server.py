"""Renders with llama.cpp's own template engine in a real ``llama-server``: ``POST /apply-template``.

The server's processing of a request before the template is part of the result: it drops message keys, rebuilds the
tools, refuses media. Two features are disabled: assistant prefill, which removes a last assistant message from the
conversation and appends it in C++, so the template never sees it; and the model, for which a stub that only loads is
enough (``stub_model``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strata_pack.chat.render.failures import RequestUnseen, TemplateError, TemplateRefused
from strata_pack.errors import WrongUse
from strata_pack.files import write_atomic
from strata_pack.llama.answers import RequestRefused
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer, StartFailed
from strata_pack.llama.stub_model import write_stub_model

REFUSAL = "Jinja Exception: "
TRACE = "While executing"
"""Prefix of the error message of a failing template, as opposed to a refused request."""

BODY_VARIABLES = ("add_generation_prompt",)
CONTEXT_TOKENS = 256


class LlamaServerEngine:
    """The engine of a running server, which renders only the template that it was started with.

    ``started_with`` is that template. The server replaces conditions of some published templates in memory (gpt-oss,
    Mistral), so the template that it reports may differ from the given one.
    """

    name = "llama.cpp"
    known_as = ("llama-server", "llama.cpp")

    def __init__(self, server: LlamaServer, started_with: str | None = None) -> None:
        props = server.client.props()
        self._server = server
        self._template = (props.chat_template if started_with is None else started_with).rstrip("\n")
        self.version = _version(server, props.build)

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        """Return the prompt; raises as ``Engine.render``, and ``WrongUse`` for another template than the server's."""
        # The server drops a newline at the end of the file, as every engine does.
        if source.rstrip("\n") != self._template:
            raise WrongUse("the server was started with another template", where=self._server.url)
        extra: dict[str, Any] = {key: inputs[key] for key in BODY_VARIABLES if key in inputs}
        rest = {key: value for key, value in inputs.items() if key not in ("messages", "tools", *BODY_VARIABLES)}
        if rest:
            extra["chat_template_kwargs"] = rest
        try:
            return self._server.client.apply_template(inputs["messages"], inputs.get("tools"), **extra)
        except RequestRefused as error:
            if REFUSAL in error.message:
                raise TemplateRefused(error.message.split(REFUSAL, 1)[1].strip("\n")) from error
            answer = f"llama-server answers HTTP {error.status}: {error.message.strip()}"
            failed_inside = TRACE in error.message
            raise (TemplateError(answer) if failed_inside else RequestUnseen(answer)) from error


def _version(server: LlamaServer, build: str) -> str:
    """Return the renderer's version: the package of an embedded server, the build number of a binary."""
    package = server.runtime.package_version
    return build if package is None else f"xllamacpp {package}"


@contextmanager
def serve_template(source: str, *, model: Path | None = None, runtime: Runtime | None = None) -> Iterator[LlamaServer]:
    """Start a server with the template ``source`` and yield it; without ``model``, with a stub model.

    Raises ``TemplateError`` with the server's message if it does not start with this template (it renders trial
    conversations first), ``StartFailed`` if it does not start for another reason.
    """
    with tempfile.TemporaryDirectory(prefix="strata-template-") as folder:
        template = Path(folder) / "chat_template.jinja"
        write_atomic(template, source.encode("utf-8"))
        weights = model or write_stub_model(Path(folder) / "stub.gguf")
        try:
            server = LlamaServer.start(
                weights,
                runtime=runtime,
                template_file=template,
                context=CONTEXT_TOKENS,
                prefill_assistant=False,
                warmup=False,
            )
        except StartFailed as error:
            if error.reason == "template":
                raise TemplateError(f"llama-server does not start with it: {error.log_tail}") from error
            raise
        with server:
            yield server

"""Runs the tasks on a pack or a server and returns the share of right calls.

The pack's own template renders the prompts; replies are generated greedily, without a grammar and one at a time, so
that a second run gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.render.template import ChatTemplate, read_template
from strata_pack.compare.calls.score import CallScore, Share, score_reply
from strata_pack.compare.calls.tasks import CallTask, make_tasks, tools
from strata_pack.compare.full import model_file
from strata_pack.errors import BadInput
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.pack.layout import gguf_template
from strata_pack.parsing import OutputParser
from strata_pack.progress import Progress, Silent

LIMIT = 768
"""Maximum tokens of a reply: the longest expected call has about 150, the rest is for thinking."""
CONTEXT = 8192


@dataclass(frozen=True)
class CallsOptions:
    """Options of a run. ``limit``: maximum tokens of a reply; ``per_kind``: tasks of each kind."""

    seed: int = 0
    per_kind: int = 8
    limit: int = LIMIT
    template: Path | None = None
    runtime: Runtime | None = None
    threads: int | None = None


@dataclass(frozen=True)
class CallsResult:
    """All results of one model."""

    model: str
    seed: int
    scores: tuple[CallScore, ...]

    @property
    def total(self) -> Share:
        """The share of tasks with exactly the expected calls."""
        return self.share(self.scores)

    @property
    def by_kind(self) -> dict[str, Share]:
        kinds = dict.fromkeys(one.kind for one in self.scores)
        return {kind: self.share([one for one in self.scores if one.kind == kind]) for kind in kinds}

    @staticmethod
    def share(scores: Sequence[CallScore]) -> Share:
        return Share(sum(one.right for one in scores), len(scores))

    def count(self, verdict: str) -> int:
        """Return the number of tasks with ``verdict``."""
        return sum(one.verdict == verdict for one in self.scores)

    def to_dict(self) -> dict[str, Any]:
        verdicts = dict.fromkeys(one.verdict for one in self.scores)
        return {
            "model": self.model,
            "seed": self.seed,
            "total": self.total.to_dict(),
            "kinds": {kind: share.to_dict() for kind, share in self.by_kind.items()},
            "verdicts": {verdict: self.count(verdict) for verdict in verdicts},
            "stranded": sum(one.stranded for one in self.scores),
            "drifted": sum(one.drifted for one in self.scores),
            "tasks": [
                {"task": one.task, "verdict": one.verdict, "stranded": one.stranded, "drifted": one.drifted}
                for one in self.scores
            ],
        }


def ask_model(model: Path, options: CallsOptions, progress: Progress | None = None) -> CallsResult:
    """Serve a PACK or GGUF and run every task on it.

    Raises ``BadInput`` for a model without a chat template, ``EnvironmentFailure`` if the server does not start.
    """
    path = model_file(model)
    template = _template(path, options.template)
    with LlamaServer.start(path, runtime=options.runtime, context=CONTEXT, threads=options.threads) as server:
        return ask_server(server.client, template, str(model), options, progress)


def ask_url(url: str, template: Path, options: CallsOptions, progress: Progress | None = None) -> CallsResult:
    """Run every task on the llama.cpp server at ``url``; ``template`` renders the prompts."""
    client = LlamaClient(url)
    try:
        return ask_server(client, ChatTemplate(read_template(template)), url, options, progress)
    finally:
        client.close()


def ask_server(
    server: LlamaClient, template: ChatTemplate, name: str, options: CallsOptions, progress: Progress | None = None
) -> CallsResult:
    """Run every task on a server whose model is called ``name``."""
    tasks, offered = make_tasks(options.seed, options.per_kind), tools()
    task = (progress or Silent()).task(f"calls of {Path(name).name}", len(tasks), "tasks")
    scores = []
    for one in tasks:
        scores.append(_ask(server, template, one, offered, options))
        task.advance(1)
    task.done()
    return CallsResult(name, options.seed, tuple(scores))


def _ask(
    server: LlamaClient, template: ChatTemplate, task: CallTask, offered: list[dict[str, Any]], options: CallsOptions
) -> CallScore:
    prompt = template.render(task.messages, offered, add_generation_prompt=True)
    answer = server.completion(
        prompt,
        n_predict=options.limit,
        temperature=0.0,
        seed=options.seed,
        cache_prompt=False,
        stop=["<|im_end|>", "<|endoftext|>"],
    )
    parser = OutputParser.for_prompt(prompt, tools=offered, call_format="auto")
    reason = "length" if answer.stop_type == "limit" else "stop"
    return score_reply(task, answer.text, offered, parser, reason)


def _template(model: Path, named: Path | None) -> ChatTemplate:
    if named is not None:
        return ChatTemplate(read_template(named))
    text = gguf_template(model)
    if text is None:
        raise BadInput("has no chat template", where=model, remedy="name one with --template")
    return ChatTemplate(text)

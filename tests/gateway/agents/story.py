"""What the scripted model does in an agent's session: five steps, each told from the conversation so far.

1. A shell command, as a whole call inside the thinking.
2. A look at an image.
3. A shell command whose call is cut by the limit of tokens.
4. A shell command in whose call the server goes away.
5. The answer.

Requests beside the session (titles, summaries) have no tools, and get a line of text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.gateway.replay import Replay, prompt_text

TASK = "STRATA-TASK"
DONE = "STRATA-DONE"
COMMAND = "echo strata-$((7000+351))"
RAN = "strata-7351"


@dataclass(frozen=True)
class Call:
    """A call that the model writes: the agent's tool and its arguments."""

    name: str
    arguments: dict[str, str]

    @property
    def text(self) -> str:
        parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in self.arguments.items())
        return f"<tool_call>\n<function={self.name}>\n{parameters}</function>\n</tool_call>"


@dataclass
class Story:
    """The model. ``steps`` are what it was asked, ``prompts`` the session's prompts."""

    shell: Call
    look: Call
    prompts: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def popleft(self) -> Any:
        """Return what answers the next completion: the replaying server takes it from its script."""
        return self.answer

    def answer(self, body: dict[str, Any]) -> Replay:
        """Return the model's next words."""
        prompt = prompt_text(body["prompt"])
        step = self._step(prompt)
        self.steps.append(step)
        if step != "beside":
            self.prompts.append(prompt)
        texts = {
            "beside": "Short.\n</think>\n\nA title",
            "stranded": f"I run it first.\n\n{self.shell.text}",
            "image": f"Now the picture.\n</think>\n\n{self.look.text}",
            "cut": f"Once more.\n</think>\n\nAgain.\n{self.shell.text[:-40]}",
            "broken": f"And again.\n</think>\n\nAgain.\n{self.shell.text}",
            "answer": f"All is done.\n</think>\n\n{DONE}",
        }
        text = texts[step]
        deltas = [text[start : start + 5] for start in range(0, len(text), 5)]
        return Replay(
            deltas,
            stop_type="limit" if step == "cut" else "eos",
            break_after=len(deltas) - 8 if step == "broken" else None,
        )

    def _step(self, prompt: str) -> str:
        if TASK not in prompt or f'"name": "{self.shell.name}"' not in prompt:
            return "beside"
        if "cut" in self.steps:
            return "answer" if "broken" in self.steps else "broken"
        if f"<function={self.look.name}>" in prompt:
            return "cut"
        return "image" if RAN in prompt else "stranded"

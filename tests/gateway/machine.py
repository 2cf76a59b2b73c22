"""Where models are loaded in tests: servers that start, do not fit, fail or die as a test asks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import EnvironmentFailure
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.models import Loaded, Models, NoMemory, ServedModel
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.settings import Served
from strata_pack.gateway.upstream import Upstream
from tests.gateway.conftest import CONTROL, TEMPLATE_ID


@dataclass
class Process:
    """A server that is running or not."""

    running: bool = True

    def stop(self) -> None:
        self.running = False


@dataclass
class Machine:
    """Where models are loaded: how long it takes, what room there is, and what was loaded."""

    url: str = "http://127.0.0.1:9"
    seconds: float = 0.0
    room: int = 100
    failing: set[str] = field(default_factory=set)
    dying: int = 0
    """How many of the next servers take no connections, though their processes still seem to run."""
    processes: dict[str, list[Process]] = field(default_factory=dict)

    def running(self) -> list[str]:
        return [name for name, made in self.processes.items() if any(one.running for one in made)]

    def load(self, name: str) -> Loaded:
        time.sleep(self.seconds)
        if name in self.failing:
            raise EnvironmentFailure("the server cannot load the model", where=name)
        if len(self.running()) >= self.room:
            raise NoMemory("there is not enough memory")
        process = Process()
        upstream = Upstream("http://127.0.0.1:9" if self.dying else self.url)
        self.dying = max(0, self.dying - 1)
        self.processes.setdefault(name, []).append(process)
        prompts = Prompts(ChatTemplate(load_shipped(TEMPLATE_ID).source), ControlTokens(CONTROL, guess=False), upstream)
        return Loaded(process, RunningModel(upstream, prompts, served=Served(name, quant="Q4")))


def of(machine: Machine, *names: str, most: int = 100, idle: float | None = None) -> tuple[Models, list[ServedModel]]:
    models = Models(most, idle)
    return models, [models.add(name, lambda name=name: machine.load(name)) for name in names]

"""Real agents, a scripted model: each runs a stranded call, survives an image, goes on after a call that was cut."""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from strata_pack.gateway.server.access import Access
from strata_pack.gateway.server.run import uvicorn_config
from strata_pack.gateway.service import Gateway
from tests.gateway.agents.installed import command_of, modules_of, node
from tests.gateway.agents.story import DONE, RAN, Call, Story
from tests.gateway.agents.table import AGENTS, Agent, Place
from tests.gateway.conftest import House

pytestmark = pytest.mark.slow
RUN_SECONDS = 180
RUNS = 4


def png(width: int, height: int) -> bytes:
    """Return a red picture."""
    rows = (b"\0" + b"\xc0\x20\x20" * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(data)) + kind + data + _checksum(kind + data) for kind, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


class WatchedHouse(House):
    """A gateway that notes every request that is over."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Access] = []

    def config_of(self, gateway: Gateway) -> uvicorn.Config:
        return uvicorn_config(gateway, sinks=[self.seen.append])


@dataclass(frozen=True)
class Session:
    """What came of a session: the runs' output, the model's story, the requests."""

    outputs: list[str]
    story: Story
    seen: list[Access]


@pytest.fixture(scope="module", params=AGENTS, ids=lambda agent: agent.name)
def session(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session of an agent: a run, and more in the same session where one does not come to the answer."""
    agent: Agent = request.param
    command = command_of(agent)
    folder = tmp_path_factory.mktemp(agent.name)
    with WatchedHouse() as house:
        place = Place(house.url, folder / "home", folder / "work")
        place.work.mkdir()
        Path(place.picture).write_bytes(png(16, 16))
        for name, text in agent.files(place).items():
            (place.home / name).parent.mkdir(parents=True, exist_ok=True)
            (place.home / name).write_text(text)
        place.home.mkdir(exist_ok=True)
        story = Story(agent.shell, agent.look(place))
        house.replay.script = story  # type: ignore[assignment]
        outputs = [run(command, agent.setup(place), agent, place)] if agent.setup else []
        outputs.append(run(command, agent.first, agent, place))
        while DONE not in outputs[-1] and "cut" in story.steps and len(outputs) < RUNS:
            outputs.append(run(command, agent.again, agent, place))
        yield Session(outputs, story, house.seen)


def run(command: list[str], arguments: tuple[str, ...], agent: Agent, place: Place) -> str:
    """Return what the agent printed."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    given = [argument.replace("~", str(place.home)) for argument in arguments]
    done = subprocess.run(
        [*command, *given],
        cwd=place.work,
        env={**kept, "HOME": str(place.home), "CI": "1", **agent.environment(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    return done.stdout


def test_an_agent_runs_a_call_that_was_written_inside_the_thinking(session: Session) -> None:
    assert any(RAN in prompt for prompt in session.story.prompts), session.outputs


def test_an_agent_goes_on_after_an_image(session: Session) -> None:
    assert "cut" in session.story.steps, session.outputs


def test_an_agent_comes_to_its_answer_after_calls_that_were_cut(session: Session) -> None:
    assert DONE in session.outputs[-1], session.outputs
    assert "broken" in session.story.steps


def test_nothing_that_an_agent_asks_is_refused(session: Session) -> None:
    outcomes = [one.outcome for one in session.seen if one.status >= 400 or one.outcome != "ok"]
    assert set(outcomes) <= {"upstream_gone"}


BLIND = "[image: this model cannot see it]"


@pytest.mark.parametrize("way", ["whole", "stream", "chat"])
def test_the_ai_sdk_runs_a_loop_of_tools(way: str, tmp_path: Path) -> None:
    """The default provider speaks the Responses API, and names what it has seen by ``item_reference``.

    To chat completions the SDK sends a tool's image as the text of its JSON.
    """
    modules = modules_of("ai", "7.0.173", "AI SDK", **{"@ai-sdk/openai": "4.0.118"})
    script = modules.parent / "loop.mjs"
    script.write_bytes(Path(__file__).with_name("ai_sdk_loop.mjs").read_bytes())
    with WatchedHouse() as house:
        story = Story(Call("run", {"command": "x"}), Call("look", {"path": "p"}))
        house.replay.script = story  # type: ignore[assignment]
        command = [node(), str(script), house.url, way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, cwd=tmp_path)
    assert story.steps[:3] == ["stranded", "image", "cut"], done
    assert BLIND in story.prompts[-1]
    assert done.stdout.split()[-1] == ("done" if way == "stream" else "length"), done
    assert [one.status for one in house.seen] == [200] * len(story.steps)

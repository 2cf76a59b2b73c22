"""Generates the tasks: conversations with exactly known next calls, or none.

``make_tasks(seed)`` draws names, numbers and places from lists: the same seed always gives the same tasks. The
kinds of tasks are those in which quantized models fail first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from typing import Any

Message = Mapping[str, Any]

PER_KIND = 8
"""Default number of tasks of each kind."""
MOST = 1000
"""Largest number of tasks of each kind."""
SYSTEM = "You are a careful assistant. Use a tool where one fits the request; answer directly where none is needed."
NAMES = ("Ada", "Bruno", "Chidi", "Dagny", "Emre", "Farah", "Goran", "Hana")
ARTICLES = ("lamp", "kettle", "notebook", "bicycle bell", "rain coat", "desk")


def _data(name: str) -> Any:
    return json.loads(resources.files("strata_pack.compare.calls").joinpath(name).read_text(encoding="utf-8"))


_WORDS: Mapping[str, Sequence[str]] = _data("words.json")
CITIES, WEATHER = _WORDS["cities"], _WORDS["weather"]
FILES = tuple(
    f"{folder}/{stem}.{suffix}"
    for folder, stem, suffix in product(_WORDS["folders"], _WORDS["stems"], _WORDS["suffixes"])
)


@dataclass(frozen=True)
class ExpectedCall:
    """An expected call: the tool's name and its exact arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class CallTask:
    """One conversation and the expected next calls, in any order; none if ``calls`` is empty."""

    id: str
    kind: str
    messages: tuple[Message, ...]
    calls: tuple[ExpectedCall, ...]


def tools() -> list[dict[str, Any]]:
    """Return the tools of every task, as OpenAI tool objects."""
    found: list[dict[str, Any]] = _data("tools.json")
    return found


def make_tasks(seed: int = 0, per_kind: int = PER_KIND) -> list[CallTask]:
    """Return ``per_kind`` tasks of each kind, the same for the same seed and no two alike.

    Two equal prompts would get the same greedy reply, so that the second would only make the intervals too narrow.
    ``ValueError`` for more tasks than ``MOST`` of a kind.
    """
    if per_kind > MOST:
        raise ValueError(f"there are at most {MOST} tasks of a kind")
    tasks = []
    for kind, make in KINDS.items():
        draw = random.Random(f"{seed} {kind}")
        made: dict[str, MadeTask] = {}
        while len(made) < per_kind:
            task = make(draw)
            made.setdefault(repr(task), task)
        for number, (messages, calls) in enumerate(made.values(), 1):
            tasks.append(CallTask(f"{kind}-{number}", kind, (_system(), *messages), tuple(calls)))
    return tasks


MadeTask = tuple[Sequence[Message], Sequence[ExpectedCall]]


def _system() -> Message:
    return {"role": "system", "content": SYSTEM}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _called(name: str, arguments: Mapping[str, Any], result: str, number: int = 1) -> list[Message]:
    """Return an assistant's call and its result."""
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def _one_call(draw: random.Random) -> MadeTask:
    city, units = draw.choice(CITIES), draw.choice((None, "metric", "imperial"))
    text = draw.choice(WEATHER).format(city=city)
    if units is None:
        return [_user(text)], [ExpectedCall("get_weather", {"city": city})]
    return [_user(f"{text} In {units} units, please.")], [ExpectedCall("get_weather", {"city": city, "units": units})]


def _parallel(draw: random.Random) -> MadeTask:
    first, second = draw.sample(FILES, 2)
    text = f"Please read {first} and {second}, both of them at once, so that I can compare them."
    return [_user(text)], [ExpectedCall("read_file", {"path": path}) for path in (first, second)]


def _nested(draw: random.Random) -> MadeTask:
    one, two = draw.sample(NAMES, 2)
    date, time = f"2027-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}", f"{draw.randint(8, 17):02d}:30"
    text = f'Create the event "Review" on {date} at {time} with {one} and {two} as attendees.'
    arguments = {"title": "Review", "start": {"date": date, "time": time}, "attendees": [one, two]}
    return [_user(text)], [ExpectedCall("create_event", arguments)]


def _none_needed(draw: random.Random) -> MadeTask:
    questions = (
        "Thank you, that was all for today.",
        f"What is {draw.randint(10, 99)} plus {draw.randint(10, 99)}? Answer with the number alone.",
        f"Write one short sentence that greets {draw.choice(NAMES)}.",
        "Which of your tools would you use to read a file? Only name it, do not call it.",
    )
    return [_user(draw.choice(questions))], []


def _long_string(draw: random.Random) -> MadeTask:
    names = draw.sample(NAMES, 5)
    lines = [
        f"{number}. {name}: {draw.choice(ARTICLES)}, {draw.randint(1, 90)} pieces"
        for number, name in enumerate(names, 1)
    ]
    content = "# Orders\n\n" + "\n".join(lines) + "\n\nEnd of list."
    text = f"Write exactly the text between the lines of dashes to orders.md.\n-----\n{content}\n-----"
    return [_user(text)], [ExpectedCall("write_file", {"path": "orders.md", "content": content})]


def _enum(draw: random.Random) -> MadeTask:
    number, state = draw.randint(100, 9999), draw.choice(("open", "in progress", "blocked", "done"))
    return [_user(f"Set ticket {number} to the state {state}.")], [
        ExpectedCall("set_ticket", {"ticket": number, "state": state})
    ]


def _numbers(draw: random.Random) -> MadeTask:
    article, price, quantity = draw.choice(ARTICLES), draw.randint(100, 9999) / 100, draw.randint(2, 900)
    text = f"Set the price of the article {article} to {price:.2f} with a quantity of {quantity}; it is on sale."
    arguments = {"article": article, "price": price, "quantity": quantity, "sale": True}
    return [_user(text)], [ExpectedCall("set_price", arguments)]


def _after_failure(draw: random.Random) -> MadeTask:
    path = draw.choice(FILES)
    wrong = path.rpartition("/")[2]
    messages = [
        _user(f"Read {wrong} for me."),
        *_called("read_file", {"path": wrong}, f"Error: {wrong} does not exist. Did you mean {path}?"),
        _user(f"Yes, I mean {path}, read that one."),
    ]
    return messages, [ExpectedCall("read_file", {"path": path})]


def _long_history(draw: random.Random) -> MadeTask:
    messages: list[Message] = []
    cities = draw.sample(CITIES, 6)
    for number, city in enumerate(cities[:5], 1):
        weather = f"{draw.randint(-5, 30)} degrees, {draw.choice(('rain', 'sun', 'clouds', 'snow'))}"
        messages += [_user(f"And the weather in {city}?"), *_called("get_weather", {"city": city}, weather, number)]
        messages.append({"role": "assistant", "content": f"In {city}: {weather}."})
    messages.append(_user(f"Now the same for {cities[5]}, in imperial units please."))
    return messages, [ExpectedCall("get_weather", {"city": cities[5], "units": "imperial"})]


KINDS: Mapping[str, Callable[[random.Random], MadeTask]] = {
    "one-call": _one_call,
    "parallel": _parallel,
    "nested": _nested,
    "none-needed": _none_needed,
    "long-string": _long_string,
    "enum": _enum,
    "numbers": _numbers,
    "after-failure": _after_failure,
    "long-history": _long_history,
}

"""Read, validate and resolve ``release.toml``, before any work.

``release.schema.json`` is the format. What a schema cannot say (a preset that exists, a file that is there, two packs
of one name) is checked here. One error names every problem of the file.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput, StrataError
from strata_pack.files import read_bytes
from strata_pack.outputs import is_inside, is_same_file
from strata_pack.pack.schema_check import problems
from strata_pack.suggest import nearest

FILE_LIMIT = 1 << 20
"""Largest release file in bytes."""
SHOWN = 8
"""Problems that one error lists before it counts the rest."""
TAKEN = frozenset({"reports", "report.html", "report.json", "cards"})
"""Names in the packs' folder that are not packs."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Limits:
    """Limits of one pack. ``kl_mean`` in nats; ``calls`` is a share of the source's correct calls."""

    golden: bool = True
    smoke: bool = False
    kl_mean: float | None = None
    calls: float | None = None


@dataclass(frozen=True)
class Measuring:
    """Measuring options, the same for all packs. Without texts, the shipped ones are used."""

    kl_text: tuple[Path, ...] = ()
    kl_windows: int | None = None
    kl_context: int = 512
    calls_tasks: int = 8
    calls_seed: int = 0


@dataclass(frozen=True)
class ImatrixSpec:
    """The importance matrix: an existing ``file``, or computed from ``text`` (empty: the shipped text)."""

    text: tuple[Path, ...] = ()
    file: Path | None = None
    chunks: int | None = None
    context: int = 512


@dataclass(frozen=True)
class PackSpec:
    """One pack: exactly one of ``quant``, ``recipe`` and ``fit`` is given."""

    name: str
    quant: str | None
    recipe: Path | None
    fit: str | None
    imatrix: bool
    limits: Limits
    publish: bool
    repo: str | None


@dataclass(frozen=True)
class PublishSpec:
    """Where packs go: ``repo`` on the Hub, or ``to`` (``dir:DIR`` or ``oci:DIR``, absolute)."""

    repo: str | None
    to: str | None
    sign: Path | None

    @property
    def target(self) -> str | None:
        return self.repo or self.to


@dataclass(frozen=True)
class Release:
    """A release file, its paths absolute. ``template`` is an id, a file's path, "auto" or "keep"."""

    path: Path
    name: str
    source: str
    out: Path
    template: str
    golden: Path | None
    allow_triggers: bool
    allow_requantize: bool
    projector: bool
    mtp: bool
    imatrix: ImatrixSpec | None
    packs: tuple[PackSpec, ...]
    measuring: Measuring
    publish: PublishSpec | None
    accept_licence: bool = False
    """Whether the user accepts the source's terms; only the command line can set it."""

    @property
    def state(self) -> Path:
        """Work folder: results, fetched files, intermediate files."""
        return self.out / ".release"

    @property
    def lock_path(self) -> Path:
        return self.path.with_suffix(".lock")


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the release file."""
    value: dict[str, Any] = json.loads((Path(__file__).parent / "release.schema.json").read_bytes())
    return value


def read_release(path: Path) -> Release:
    """Read and check a release file. Raises ``BadInput`` that names everything wrong with it."""
    try:
        table = tomllib.loads(read_bytes(path, FILE_LIMIT).decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"is no TOML ({error})", where=path) from None
    wrong = [*_unknown_keys(table, schema(), ""), *_against_schema(table)]
    if wrong:
        raise _refusal(path, wrong)
    reader = _Reader(path.absolute())
    release = reader.release(table)
    if reader.wrong:
        raise _refusal(path, reader.wrong)
    return release


def _refusal(path: Path, wrong: list[str]) -> BadInput:
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return BadInput("; ".join(wrong[:SHOWN]) + more, where=path)


def _resolved(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in rule:
        found: Any = schema()
        for part in rule["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        rule = found
    return rule


def _unknown_keys(value: Any, rule: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield a sentence for every key that the schema does not know, with the nearest that it does."""
    rule = _resolved(rule)
    if isinstance(value, list):
        for number, item in enumerate(value, 1):
            yield from _unknown_keys(item, rule.get("items", {}), f"{place} {number}")
    elif isinstance(value, dict) and "properties" in rule:
        known = rule["properties"]
        for key, inner in value.items():
            if key in known:
                yield from _unknown_keys(inner, known[key], f"{place}.{key}" if place else key)
            else:
                near = nearest(key, known)
                hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
                yield f"{_named(place)} has the unknown key {key!r}; {hint}"


def _against_schema(table: Any) -> Iterator[str]:
    for place, problem in problems(table, schema()):
        if problem.endswith("is not known"):
            continue
        named = "".join(f" {part + 1}" if isinstance(part, int) else f".{part}" for part in place)
        yield f"{_named(named.removeprefix('.'))}: {problem}"


def _named(place: str) -> str:
    return f"[{place}]" if place else "the file"


class _Reader:
    """Turns a table that fits the schema into a ``Release`` and collects problems of its values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wrong: list[str] = []

    def release(self, table: Mapping[str, Any]) -> Release:
        top = table["release"]
        gates = table.get("gates", {})
        limits = {key: gates[key] for key in ("golden", "smoke", "kl_mean", "calls") if key in gates}
        texts = gates.get("kl_text", [])
        measuring = Measuring(
            kl_text=tuple(self._file(name, "gates.kl_text") for name in texts),
            **{key: gates[key] for key in ("kl_windows", "kl_context", "calls_tasks", "calls_seed") if key in gates},
        )
        packs = tuple(self._pack(top["name"], one, n, limits) for n, one in enumerate(table["pack"], 1))
        self._names(packs)
        out = self._out(top.get("out", "packs"))
        return Release(
            path=self.path,
            name=top["name"],
            source=self._source(top["source"]),
            out=out,
            template=self._template(top.get("template", "auto")),
            golden=self._golden(top["golden"]) if "golden" in top else None,
            allow_triggers=top.get("allow_triggers", False),
            allow_requantize=top.get("allow_requantize", False),
            projector=top.get("projector", True),
            mtp=top.get("mtp", True),
            imatrix=self._imatrix(table["imatrix"]) if "imatrix" in table else None,
            packs=packs,
            measuring=measuring,
            publish=self._publish(table["publish"], out) if "publish" in table else None,
        )

    def _names(self, packs: Sequence[PackSpec]) -> None:
        """Record packs with the same path; a file system may ignore case."""
        places = [pack.name.casefold() for pack in packs]
        for name in sorted({pack.name for pack in packs if places.count(pack.name.casefold()) > 1}):
            self.wrong.append(f"[pack]: two packs are called {name}; give one a name of its own")
        for name in sorted({pack.name for pack in packs if pack.name.casefold() in TAKEN}):
            self.wrong.append(f"[pack]: {name} is the place of a report or a card; give the pack another name")

    def _try(self, place: str, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except StrataError as error:
            self.wrong.append(f"[{place}]: {error}")
            return None

    def _place(self, name: str, place: str) -> Path:
        """Return the path of ``name``; an impossible one is recorded and replaced by the release file's path."""
        try:
            if not name.isprintable():
                raise ValueError("it holds a character that cannot be printed")
            path = self.path.parent / Path(name).expanduser()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.wrong.append(f"[{place}]: {name[:80]!r} is no path ({reason})")
            return self.path
        return path

    def _file(self, name: str, place: str) -> Path:
        path = self._place(name, place)
        if not path.is_file():
            self.wrong.append(
                f"[{place}]: {name} is a folder" if path.is_dir() else f"[{place}]: there is no file {name}"
            )
        return path

    def _golden(self, name: str) -> Path:
        from strata_pack.chat.golden.cases import load_suite

        path = self._place(name, "release.golden")
        if not path.exists():
            self.wrong.append(f"[release.golden]: there is no file {name}")
        elif path != self.path:
            self._try("release.golden", lambda: load_suite(path))
        return path

    def _out(self, name: str) -> Path:
        path = self._place(name, "release.out")
        if path != self.path and path.exists() and not path.is_dir():
            self.wrong.append(f"[release.out]: {name} is a file, not a folder")
        return path

    def _repo(self, table: Mapping[str, Any], place: str) -> str | None:
        from strata_pack.weights.source import is_repo_id

        repo: str | None = table.get("repo")
        if repo is not None and not is_repo_id(repo):
            self.wrong.append(f"[{place}.repo]: {repo[:80]!r} is no repository on the Hub; write org/name")
        return repo

    def _source(self, text: str) -> str:
        """Return the source with an absolute path; relative paths start at the release file's folder."""
        from strata_pack.weights.source import HubSource, parse_source

        if not text.startswith("hf://"):
            near = self._place(text, "release.source")
            if near == self.path:
                return text
            text = str(near) if near.exists() else text
        found = self._try("release.source", lambda: parse_source(text))
        return str(found) if isinstance(found, HubSource) else text

    def _template(self, option: str) -> str:
        from strata_pack.chat.library import find_shipped, list_templates
        from strata_pack.pack.template.choice import AUTO, KEEP

        if option in (AUTO, KEEP) or find_shipped(option) is not None:
            return option
        path = self._place(option, "release.template")
        if not path.is_file():
            names = [AUTO, KEEP, *(one.id for one in list_templates())]
            near = nearest(option, names)
            hint = f"did you mean {near!r}?" if near else f"give a file or one of {', '.join(names)}"
            self.wrong.append(f"[release.template]: no template {option!r}; {hint}")
        return str(path)

    def _imatrix(self, table: Mapping[str, Any]) -> ImatrixSpec:
        if "file" in table and len(table) > 1:
            others = ", ".join(sorted(set(table) - {"file"}))
            self.wrong.append(f"[imatrix]: file is a finished matrix; it excludes {others}")
        return ImatrixSpec(
            text=tuple(self._file(name, "imatrix.text") for name in table.get("text", [])),
            file=self._file(table["file"], "imatrix.file") if "file" in table else None,
            chunks=table.get("chunks"),
            context=table.get("context", 512),
        )

    def _pack(self, release: str, table: Mapping[str, Any], number: int, limits: Mapping[str, Any]) -> PackSpec:
        place = f"pack {number}"
        kinds = [key for key in ("quant", "recipe", "fit") if key in table]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none of them"
            self.wrong.append(f"[{place}]: needs one of quant, recipe and fit, and {given} is given")
        recipe = self._file(table["recipe"], f"{place}.recipe") if "recipe" in table else None
        label = self._try(place, lambda: _label(table, recipe)) or f"pack-{number}"
        return PackSpec(
            name=table.get("name") or _UNSAFE.sub("-", f"{release}-{label}").strip("-."),
            quant=table.get("quant"),
            recipe=recipe,
            fit=table.get("fit"),
            imatrix=table.get("imatrix", True),
            limits=Limits(**{**limits, **table.get("gates", {})}),
            publish=table.get("publish", True),
            repo=self._repo(table, place),
        )

    def _publish(self, table: Mapping[str, Any], out: Path) -> PublishSpec:
        if ("repo" in table) == ("to" in table):
            self.wrong.append("[publish]: needs a repo or a place (to), one of them")
        to = table.get("to")
        if to is not None:
            kind = next((one for one in ("oci:", "dir:") if to.startswith(one)), "")
            to = f"{kind or 'dir:'}{self._place(to.removeprefix(kind), 'publish.to')}"
            place = Path(to.partition(":")[2])
            if is_same_file(out, place) or is_inside(out, place):
                self.wrong.append(
                    f"[publish.to]: {table['to']} holds the packs themselves; name a folder apart from them"
                )
        sign = self._file(table["sign"], "publish.sign") if "sign" in table else None
        return PublishSpec(self._repo(table, "publish"), to, sign)


def _label(table: Mapping[str, Any], recipe: Path | None) -> str:
    """Return the second part of a pack's name. Raises if the quantization is wrong."""
    from strata_pack.compare.fit.budget import parse_budget
    from strata_pack.weights.quantize.presets import find_preset
    from strata_pack.weights.quantize.recipes import read_recipe

    if "quant" in table:
        return find_preset(table["quant"]).name
    if "fit" in table:
        parse_budget(table["fit"])
        return "fit-" + re.sub(r"\s+", "", table["fit"])
    if recipe is not None and recipe.is_file():
        read_recipe(recipe)
        return recipe.stem
    return ""

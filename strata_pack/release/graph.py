"""The graph of a release: its nodes, what each needs, and the settings that its result depends on.

A node's key is the hash of its settings and of its inputs' digests. Paths, threads and locations do not change
the result and are not settings; a file enters by its content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strata_pack.chat.golden.cases import suite_files
from strata_pack.files import sha256_file, sha256_text
from strata_pack.release.lock import LockedSource
from strata_pack.release.release_file import PackSpec, PublishSpec, Release
from strata_pack.release.results import Result
from strata_pack.release.versions import Versions

FORMAT = 1
"""Part of every key. Raise it when results change without a change of any version."""

Json = Any


@dataclass(frozen=True)
class Node:
    """One step. ``id`` is its kind, or ``kind:pack``; its result depends on ``settings``, not on ``paths``.

    A ``soft`` node runs when everything it needs has ended, failed or not. ``after`` are nodes that must be done
    first but do not enter the key.
    """

    id: str
    kind: str
    needs: tuple[str, ...]
    settings: Mapping[str, Json]
    paths: Mapping[str, Json] = field(default_factory=dict)
    soft: bool = False
    after: tuple[str, ...] = ()


Graph = Mapping[str, Node]
"""The nodes by id, each after what it needs."""


def key_of(node: Node, inputs: Mapping[str, Result | str]) -> str:
    """Return the key of ``node``; ``inputs`` are the results it needs, or why one of them failed."""
    digests = {name: value if isinstance(value, str) else value["digest"] for name, value in inputs.items()}
    return sha256_text(json.dumps([FORMAT, node.kind, node.settings, digests], sort_keys=True))


def make_graph(release: Release, source: LockedSource, versions: Versions) -> dict[str, Node]:
    """Return the graph of a release whose source is pinned."""
    return _Graph(release, source, versions).nodes


class _Graph:
    def __init__(self, release: Release, source: LockedSource, versions: Versions) -> None:
        self.release, self.versions = release, versions
        self.nodes: dict[str, Node] = {}
        self._add("fetch", (), self._source(source), template=release.template, golden=_text(release.golden))
        converted = source["format"] != "gguf" and self._needs_reference()
        self.reference = "convert" if converted else "fetch"
        if converted:
            self._add("convert", ("fetch",), {"mtp": release.mtp, "tool": versions.tool})
        self.imatrix = self._imatrix()
        self._shared_measures()
        for pack in release.packs:
            self._pack(pack)
        gates = tuple(node for node in self.nodes if node.startswith("gates:"))
        others = ("gates:", "recipe:", "provenance:")
        measured = tuple(node for node in self.nodes if ":" in node and not node.startswith(others))
        self._add("report", (*measured, *gates), {"name": release.name, "tool": versions.tool}, soft=True)
        if release.publish is not None:
            self._publish(release.publish, (*measured, *gates))

    def _add(
        self, id: str, needs: tuple[str, ...], settings: Mapping[str, Json], *, soft: bool = False, **paths: Json
    ) -> None:
        self.nodes[id] = Node(id, id.partition(":")[0], needs, settings, paths, soft)

    def _source(self, source: LockedSource) -> dict[str, Json]:
        if source["commit"] is not None:
            return {"repo": source["repo"], "commit": source["commit"], "source": source["text"]}
        # Local files: size and time of change are the settings; their hashes are the node's result.
        return {"files": [(name, *_stamp(path)) for name, path in local_files(self.release, source).items()]}

    def _needs_reference(self) -> bool:
        release = self.release
        made = release.imatrix is not None and release.imatrix.file is None
        limits = [pack.limits for pack in release.packs]
        return made or any(one.kl_mean is not None or one.calls is not None for one in limits)

    def _imatrix(self) -> Mapping[str, Json]:
        """Add the importance matrix node; return the settings that it adds to a pack."""
        spec = self.release.imatrix
        if spec is None:
            return {}
        if spec.file is not None:
            return {"imatrix": _content(spec.file)}
        settings = {
            "text": [_content(path) for path in spec.text] or [f"shipped {self.versions.tool}"],
            "names": [path.name for path in spec.text],
            "context": spec.context,
            "chunks": spec.chunks,
            "library": self.versions.library,
        }
        self._add("imatrix", (self.reference,), settings, text=[str(path) for path in spec.text])
        return {}

    def _shared_measures(self) -> None:
        """Add the measurements shared by all packs: the source's logits and the source's tool calls."""
        how, versions = self.release.measuring, self.versions
        limits = [pack.limits for pack in self.release.packs]
        self.kl = {
            "text": [_content(path) for path in how.kl_text] or [f"shipped {versions.tool}"],
            "windows": how.kl_windows,
            "context": how.kl_context,
            "library": versions.library,
        }
        self.texts = [str(path) for path in how.kl_text]
        if any(one.kl_mean is not None for one in limits):
            self._add("logits", (self.reference,), self.kl, text=self.texts)
        self.calls = {
            "seed": how.calls_seed,
            "tasks": how.calls_tasks,
            "runtime": versions.runtime,
            "tool": versions.tool,
        }
        if any(one.calls is not None for one in limits):
            self._add("calls", (self.reference,), self.calls)

    def _pack(self, pack: PackSpec) -> None:
        name, limits, versions = pack.name, pack.limits, self.versions
        settings, paths = self._recipe(pack)
        needs = ("fetch", *(("imatrix",) if self._uses_node(pack) else ()))
        imatrix = None
        if pack.imatrix and self.release.imatrix is not None and self.release.imatrix.file is not None:
            imatrix = str(self.release.imatrix.file)
            settings = {**settings, **self.imatrix}
        if pack.fit is not None:
            written = {name: getattr(self.release, name) for name in ("allow_requantize", "projector", "mtp")}
            fit = {**settings, **written, "tool": versions.tool, "library": versions.library}
            self._add(f"recipe:{name}", needs, fit, imatrix=imatrix)
            needs = (*needs, f"recipe:{name}")
        settings = {
            **settings,
            "name": name,
            "tool": versions.tool,
            "library": versions.library,
            "kernels": versions.kernels,
            "template": _template(self.release.template),
            "golden": _content(self.release.golden),
            "engines": versions.engines,
            "allow_triggers": self.release.allow_triggers,
            "allow_requantize": self.release.allow_requantize,
            "projector": self.release.projector,
            "mtp": self.release.mtp,
        }
        release = self.release
        self._add(
            f"pack:{name}",
            needs,
            settings,
            **paths,
            imatrix=imatrix,
            template=release.template,
            golden=_text(release.golden),
        )
        self._add(f"provenance:{name}", (f"pack:{name}",), {"tool": versions.tool})
        gates = [f"verify:{name}"]
        self._add(f"verify:{name}", (f"pack:{name}",), {"tool": versions.tool})
        if limits.golden:
            gates.append(f"golden:{name}")
            self._add(gates[-1], (f"pack:{name}",), {"tool": versions.tool, "engines": versions.engines})
        if limits.smoke:
            gates.append(f"smoke:{name}")
            self._add(gates[-1], (f"pack:{name}",), {"tool": versions.tool, "runtime": versions.runtime})
        if limits.kl_mean is not None:
            gates.append(f"kl:{name}")
            self._add(gates[-1], (f"pack:{name}", self.reference, "logits"), self.kl, text=self.texts)
        if limits.calls is not None:
            gates.append(f"calls:{name}")
            self._add(gates[-1], (f"pack:{name}",), self.calls)
        shared = ("calls",) if limits.calls is not None else ()
        self._add(f"gates:{name}", (f"pack:{name}", *gates, *shared), {"pack": name, **asdict(limits)}, soft=True)

    def _publish(self, publish: PublishSpec, measured: tuple[str, ...]) -> None:
        """Add the targets' cards and the publishing node; ``measured`` are the packs' ``judge`` nodes."""
        release = self.release
        targets = {pack.name: pack.repo or publish.target for pack in release.packs if pack.publish}
        settings = {"targets": targets, "sign": _content(publish.sign)}
        self._add("card", measured, {**settings, "tool": self.versions.tool}, soft=True, key=_text(publish.sign))
        stated = tuple(node for node in self.nodes if node.startswith("provenance:"))
        self._add(
            *("publish", (*measured, *stated, "card"), settings),
            soft=True,
            key=_text(publish.sign),
            accept_licence=release.accept_licence,
        )

    def _uses_node(self, pack: PackSpec) -> bool:
        return pack.imatrix and "imatrix" in self.nodes

    def _recipe(self, pack: PackSpec) -> tuple[dict[str, Json], dict[str, Json]]:
        if pack.recipe is not None:
            return {"recipe": _content(pack.recipe)}, {"recipe": str(pack.recipe)}
        return ({"quant": pack.quant} if pack.quant is not None else {"fit": pack.fit}), {}


def local_files(release: Release, source: LockedSource) -> dict[str, Path]:
    """Return the files of a source on this disk by their names in the lock."""
    root = Path(release.source).expanduser()
    folder = root.parent if source["kind"] == "file" else root
    return {entry["path"]: folder / entry["path"] for entry in source["files"]}


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return (-1, 0, 0)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _content(path: Path | None) -> str | None:
    """Return the content of a file, or of a folder of golden cases."""
    if path is None or path.is_file():
        return None if path is None else sha256_file(path)
    return sha256_text(json.dumps([(one.name, sha256_file(one)) for one in suite_files(path)]))


def _template(option: str) -> str:
    """Return the template option by content, because a shipped template can change with the version."""
    from strata_pack.chat.library import list_templates

    shipped = {one.id: one.sha256 for one in list_templates()}
    if option in shipped:
        return f"{option} {shipped[option]}"
    return sha256_file(Path(option)) if re.search(r"[./]", option) and Path(option).is_file() else option


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)

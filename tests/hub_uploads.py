"""What the local Hub answers to publishers: repositories made, files asked for, bodies taken, commits on a parent.

``Uploads`` is the state of it, with what shall go wrong: requests that are cut, statuses, and a hook before a commit,
where a test lets a second publisher be faster.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.hub_repos import LFS_FROM, Repo, blob_id

if TYPE_CHECKING:
    from tests.hub_server import HubServer

GITATTRIBUTES = b"*.gguf filter=lfs diff=lfs merge=lfs -text\n"


@dataclass
class UploadFault:
    """What goes wrong with an upload request whose path ends so: a ``status``, or the connection is cut.

    ``after`` cuts when the request was carried out already: only its answer is lost.
    """

    path: str
    status: int | None = None
    after: bool = False
    times: int = 1
    error: str = "fault on demand"


@dataclass
class Uploads:
    """``bodies`` are all that was ever taken, by SHA-256. ``die_at`` counts requests: that one and all later are cut.
    ``watch`` is told of each before it is answered.

    ``xet`` is a folder that holds chunks: then bodies come there, and ``bring`` returns a body by its SHA-256.
    """

    bodies: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: list[UploadFault] = field(default_factory=list)
    die_at: int | None = None
    before_commit: Callable[[str], None] | None = None
    watch: Callable[[str, str], None] | None = None
    xet: Path | None = None
    bring: Callable[[str], bytes] | None = None
    gitignored: frozenset[str] = frozenset()

    def next_fault(self, method: str, path: str) -> UploadFault | None:
        """Note a request and return what goes wrong with it."""
        self.requests.append((method, path))
        if self.watch is not None:
            self.watch(method, path)
        if self.die_at is not None and len(self.requests) > self.die_at:
            return UploadFault(path)
        for fault in self.faults:
            if path.endswith(fault.path) and fault.times:
                fault.times -= 1
                return fault
        return None

    @property
    def sent(self) -> int:
        """How many bodies travelled as whole files."""
        return sum(method == "PUT" and path.startswith("/lfs/") for method, path in self.requests)


def answer(hub: HubServer, method: str, path: str, body: bytes) -> tuple[int, Any]:
    """Return status and JSON of a publisher's request."""
    parts = path.strip("/").split("/")
    if path == "/api/repos/create":
        return _create(hub, json.loads(body))
    if path == "/api/validate-yaml":
        return 200, {"errors": [], "warnings": []}
    if parts[:2] == ["api", "models"] and parts[4:5] == ["preupload"]:
        return _preupload(hub, "/".join(parts[2:4]), json.loads(body))
    if parts[:2] == ["api", "models"] and parts[4:5] == ["commit"]:
        return _commit(hub, "/".join(parts[2:4]), body)
    if method == "PUT" and parts[:2] == ["api", "models"] and parts[4:] == ["settings"]:
        hub.repos["/".join(parts[2:4])].private = json.loads(body)["visibility"] == "private"
        return 200, {}
    if path.endswith(".git/info/lfs/objects/batch"):
        return 200, {"transfer": "basic", "objects": [_object(hub, one) for one in json.loads(body)["objects"]]}
    if path == "/lfs/verify":
        return (200, {}) if json.loads(body)["oid"] in hub.uploads.bodies else (404, {})
    if method == "PUT" and parts[0] == "lfs":
        if hashlib.sha256(body).hexdigest() != parts[1]:
            return 400, {"error": "another body than its name"}
        hub.uploads.bodies[parts[1]] = body
        return 200, {}
    return 404, {}


def _create(hub: HubServer, asked: dict[str, Any]) -> tuple[int, Any]:
    name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
    if name in hub.repos:
        return 409, {"error": "You already created this model repo"}
    hub.repo(name, {".gitattributes": GITATTRIBUTES}).private = asked.get("visibility") == "private"
    return 200, {"url": f"{hub.endpoint}/{name}", "name": name, "id": name}


def _preupload(hub: HubServer, name: str, asked: dict[str, Any]) -> tuple[int, Any]:
    files = hub.repos[name].commits[-1][1]
    found = []
    for one in asked["files"]:
        path = one["path"]
        lfs = one["size"] >= LFS_FROM or path.endswith(".gguf")
        known = {"oid": blob_id(files[path])} if path in files and not lfs else {}
        mode = "lfs" if lfs else "regular"
        found.append({"path": path, "uploadMode": mode, "shouldIgnore": path in hub.uploads.gitignored, **known})
    return 200, {"files": found}


def _object(hub: HubServer, one: dict[str, Any]) -> dict[str, Any]:
    known = one["oid"] in hub.uploads.bodies or any(
        hashlib.sha256(data).hexdigest() == one["oid"]
        for repo in hub.repos.values()
        for data in repo.commits[-1][1].values()
    )
    if known:
        return dict(one)
    upload = {"href": f"{hub.storage}/lfs/{one['oid']}"}
    return {**one, "actions": {"upload": upload, "verify": {"href": f"{hub.endpoint}/lfs/verify"}}}


def _commit(hub: HubServer, name: str, body: bytes) -> tuple[int, Any]:
    if hub.uploads.before_commit is not None:
        hook, hub.uploads.before_commit = hub.uploads.before_commit, None
        hook(name)
    lines = [json.loads(line) for line in body.splitlines()]
    repo = hub.repos[name]
    head = next(line["value"] for line in lines if line["key"] == "header")
    if head.get("parentCommit") not in (None, repo.commits[-1][0]):
        return 412, {"error": "A commit has happened since. Please refresh and try again."}
    files = dict(repo.commits[-1][1])
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = _body(hub, repo, value["oid"])
        elif line["key"] == "deletedFile":
            del files[value["path"]]
    oid = repo.commit(files)
    return 200, {
        "success": True,
        "commitOid": oid,
        "commitUrl": f"{hub.endpoint}/{name}/commit/{oid}",
        "hookOutput": "",
    }


def _body(hub: HubServer, repo: Repo, oid: str) -> bytes:
    uploads = hub.uploads
    if oid in uploads.bodies:
        return uploads.bodies[oid]
    if uploads.bring is not None:
        return uploads.bring(oid)
    return next(data for data in repo.commits[-1][1].values() if hashlib.sha256(data).hexdigest() == oid)

"""Reads the headers of the GGUF models of a repository, without downloading the rest."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.gguf.head import read_header
from strata_pack.weights.hub.select import gguf_models
from strata_pack.weights.source import HubSource

MANY = 200
"""Maximum number of models of one repository that are read."""


@dataclass(frozen=True)
class RemoteModel:
    """One model of a repository: its files (shards in order) and their headers, without tensor data."""

    files: tuple[str, ...]
    headers: tuple[GgufFile, ...]

    @property
    def name(self) -> str:
        """The path of its first file in the repository."""
        return self.files[0]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(header.file_size for header in self.headers)


def remote_models(source: HubSource, progress: Progress | None = None) -> list[RemoteModel]:
    """Return the GGUF models of ``source`` (all of a repository or folder, or the named one), with their headers.

    At most twice the size of each header is read. Raises ``BadInput`` if there is none, or one is damaged, and
    ``EnvironmentFailure`` if the Hub is out of reach.
    """

    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.head import head_opener
    from strata_pack.weights.hub.repo import read_tree

    hub = connect()
    tree = read_tree(hub, source.repo_id, source.revision)
    models = gguf_models([file.path for file in tree.files], source.path, str(source))
    if len(models) > MANY:
        raise BadInput(f"has {len(models)} GGUF models", where=str(source), remedy="name a folder or a file of it")
    task = (progress or Silent()).task(f"headers of {source.repo_id}", len(models), "models")
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="strata-headers-") as folder,
        hub.client() as client,
    ):
        open_head = head_opener(client, hub, tree, Path(folder))
        for files in models:
            headers = [read_header(*open_head(name), where=f"hf://{source.repo_id}/{name}") for name in files]
            found.append(RemoteModel(files, tuple(headers)))
            task.advance(1)
    task.done()
    return found

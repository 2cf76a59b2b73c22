"""A new repository is private until its first commit, so that nobody sees an empty one.

A file in the cache records the repositories that this machine has created and not yet made public, so that the run
after a killed one makes them public. A repository without such a file keeps its visibility.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_pack.files import disk_errors, sha256_text, write_atomic
from strata_pack.progress import Progress
from strata_pack.resources import cache_dir
from strata_pack.weights.hub.api import get_json
from strata_pack.weights.hub.connection import Hub

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_STORAGE_REFUSED = (402, 403)


def make_repository(hub: Hub, api: HfApi, repo: str, progress: Progress, *, private: bool) -> None:
    """Create ``repo``, private for now. The client's exception for an existing repository is not caught."""
    if not private:
        write_atomic(_note(hub, repo), f"{hub.endpoint}/{repo}\n".encode())
    api.create_repo(repo, private=True)
    progress.note(f"{repo}: made, {'private' if private else 'and private until all is there'}")


def is_to_be_opened(hub: Hub, repo: str) -> bool:
    """Return whether this machine has created ``repo`` and not yet made it public."""
    return _note(hub, repo).is_file()


def open_repository(hub: Hub, api: HfApi, repo: str) -> None:
    """Make ``repo`` public, and delete its file in the cache."""
    api.update_repo_settings(repo, private=False)
    with disk_errors(_note(hub, repo)):
        _note(hub, repo).unlink(missing_ok=True)


def is_private(hub: Hub, repo: str) -> bool:
    """Return whether ``repo`` is private."""
    about = get_json(hub, f"/api/models/{repo}", repo)
    return isinstance(about, dict) and about.get("private") is True


def lacks_private_storage(error: Any) -> bool:
    """Return whether the Hub refused an upload because the account's private storage is full."""
    return error.response.status_code in _STORAGE_REFUSED and "storage" in str(error.server_message or error).lower()


def _note(hub: Hub, repo: str) -> Path:
    return cache_dir() / "unopened" / sha256_text(f"{hub.endpoint}/{repo}")[:32]

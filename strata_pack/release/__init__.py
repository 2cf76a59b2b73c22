"""Releases: many packs built from one release file, as a graph of nodes, then checked, reported and published."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.release.local_executor import in_process as in_process
    from strata_pack.release.release_file import Release as Release
    from strata_pack.release.release_file import read_release as read_release
    from strata_pack.release.run import Outcome as Outcome
    from strata_pack.release.run import open_schedule as open_schedule
    from strata_pack.release.run import run_releases as run_releases
    from strata_pack.release.schedule import Schedule as Schedule

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "release.schedule": ("Schedule",),
        "release.local_executor": ("in_process",),
        "release.release_file": ("Release", "read_release"),
        "release.run": ("Outcome", "open_schedule", "run_releases"),
    },
)

"""Many packs from one file: the graph of a release, run on one machine or many, judged, reported and published."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.release.board import Board as Board
    from strata_pack.release.file import Release as Release
    from strata_pack.release.file import read_release as read_release
    from strata_pack.release.run import Outcome as Outcome
    from strata_pack.release.run import open_board as open_board
    from strata_pack.release.run import run_releases as run_releases
    from strata_pack.release.this_process import alone as alone

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "release.board": ("Board",),
        "release.this_process": ("alone",),
        "release.file": ("Release", "read_release"),
        "release.run": ("Outcome", "open_board", "run_releases"),
    },
)

"""Parses recorded replies: finds turns that ended inside the thinking, and the calls that each policy would recover."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.replay.reader import read_log as read_log
    from strata_pack.replay.replay import ModelReplay as ModelReplay
    from strata_pack.replay.replay import Replay as Replay
    from strata_pack.replay.replay import replay_log as replay_log
    from strata_pack.replay.replies import RecordedReply as RecordedReply

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "replay.replay": ("ModelReplay", "Replay", "replay_log"),
        "replay.reader": ("read_log",),
        "replay.replies": ("RecordedReply",),
    },
)

"""strata-pack: build, repair, prove and serve local-model packs that lose no tool call.

The names that most programs need are here; the subpackages (``strata_pack.chat``,
``strata_pack.pack``, ``strata_pack.weights``, ``strata_pack.gateway``, ...) export the other public names. Importing
this package is fast: a name's module is imported at the first use of the name.
"""

from strata_pack.doors import door

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.chat.golden.cases import load_suite as load_suite
    from strata_pack.chat.golden.check import check_golden as check_golden
    from strata_pack.chat.render.template import ChatTemplate as ChatTemplate
    from strata_pack.chat.repair.repair import repair_template as repair_template
    from strata_pack.errors import BadInput as BadInput
    from strata_pack.errors import CheckFailed as CheckFailed
    from strata_pack.errors import EnvironmentFailure as EnvironmentFailure
    from strata_pack.errors import StrataError as StrataError
    from strata_pack.errors import WrongUse as WrongUse
    from strata_pack.pack.build import BuildResult as BuildResult
    from strata_pack.pack.build import build_pack as build_pack
    from strata_pack.pack.layout import Pack as Pack
    from strata_pack.pack.request import BuildRequest as BuildRequest
    from strata_pack.pack.verification import verify as verify
    from strata_pack.parsing.output_parser import OutputParser as OutputParser
    from strata_pack.progress import Progress as Progress

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "chat.golden.cases": ("load_suite",),
        "chat.golden.check": ("check_golden",),
        "chat.render.template": ("ChatTemplate",),
        "chat.repair.repair": ("repair_template",),
        "errors": (
            "BadInput",
            "CheckFailed",
            "EnvironmentFailure",
            "StrataError",
            "WrongUse",
        ),
        "pack.build": (
            "BuildResult",
            "build_pack",
        ),
        "pack.request": ("BuildRequest",),
        "pack.layout": ("Pack",),
        "pack.verification": ("verify",),
        "parsing.output_parser": ("OutputParser",),
        "progress": ("Progress",),
    },
)

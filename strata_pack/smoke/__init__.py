"""Runs scenarios on a real llama.cpp server: does a pack load, and keep its calls, its history and its cache?"""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.smoke.prove import Proof as Proof
    from strata_pack.smoke.prove import prove_pack as prove_pack
    from strata_pack.smoke.run import SmokeOptions as SmokeOptions
    from strata_pack.smoke.run import run_smoke as run_smoke
    from strata_pack.smoke.run import run_smoke_url as run_smoke_url
    from strata_pack.smoke.scenario import Scenario as Scenario
    from strata_pack.smoke.scenario import scenarios as scenarios

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "smoke.prove": ("Proof", "prove_pack"),
        "smoke.run": (
            "SmokeOptions",
            "run_smoke",
            "run_smoke_url",
        ),
        "smoke.scenario": (
            "Scenario",
            "scenarios",
        ),
    },
)

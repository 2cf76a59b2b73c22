"""Runs llama.cpp: servers, runtimes, devices and native functions."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.llama.build import build_runtime as build_runtime
    from strata_pack.llama.client import LlamaClient as LlamaClient
    from strata_pack.llama.devices import Device as Device
    from strata_pack.llama.runtimes import Runtime as Runtime
    from strata_pack.llama.runtimes import list_runtimes as list_runtimes
    from strata_pack.llama.runtimes import pick_runtime as pick_runtime
    from strata_pack.llama.runtimes import use_runtime as use_runtime
    from strata_pack.llama.server import LlamaServer as LlamaServer
    from strata_pack.llama.server import StartFailed as StartFailed

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "llama.build": ("build_runtime",),
        "llama.client": ("LlamaClient",),
        "llama.devices": ("Device",),
        "llama.runtimes": (
            "Runtime",
            "list_runtimes",
            "pick_runtime",
            "use_runtime",
        ),
        "llama.server": (
            "LlamaServer",
            "StartFailed",
        ),
    },
)

"""OpenAI-compatible HTTP gateway for a llama.cpp server: renders prompts and parses replies without losing tool calls.

``create_app`` makes the ASGI application of a ``Gateway``, ``make_gateway`` the gateway for a server's URL. Needs
the extra ``serve``.
"""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.gateway.server.app import create_app as create_app
    from strata_pack.gateway.server.run import make_gateway as make_gateway
    from strata_pack.gateway.service import Gateway as Gateway
    from strata_pack.gateway.settings import GatewayLimits as GatewayLimits
    from strata_pack.gateway.settings import Served as Served
    from strata_pack.gateway.settings import Settings as Settings

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "gateway.server.app": ("create_app",),
        "gateway.server.run": ("make_gateway",),
        "gateway.service": ("Gateway",),
        "gateway.settings": (
            "GatewayLimits",
            "Served",
            "Settings",
        ),
    },
)

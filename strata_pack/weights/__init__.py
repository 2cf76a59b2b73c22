"""Fetches weights from the Hub, converts them from safetensors, quantizes them, and reads and writes GGUF."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.weights.convert.convert import SafetensorsSource as SafetensorsSource
    from strata_pack.weights.convert.convert import convert_checkpoint as convert_checkpoint
    from strata_pack.weights.gguf.file import GgufFile as GgufFile
    from strata_pack.weights.gguf.file import TensorInfo as TensorInfo
    from strata_pack.weights.gguf.file import open_shards as open_shards
    from strata_pack.weights.gguf.values import MetaValue as MetaValue
    from strata_pack.weights.hub.fetch import fetch_repo as fetch_repo
    from strata_pack.weights.hub.outcome import FetchPlan as FetchPlan
    from strata_pack.weights.hub.outcome import FetchResult as FetchResult
    from strata_pack.weights.quantize.imatrix import Imatrix as Imatrix
    from strata_pack.weights.quantize.imatrix import read_imatrix as read_imatrix
    from strata_pack.weights.quantize.plan import QuantPlan as QuantPlan
    from strata_pack.weights.quantize.plan import plan_quantization as plan_quantization
    from strata_pack.weights.quantize.recipes import Recipe as Recipe
    from strata_pack.weights.quantize.recipes import make_recipe as make_recipe
    from strata_pack.weights.quantize.recipes import read_recipe as read_recipe
    from strata_pack.weights.quantize.run import QuantResult as QuantResult
    from strata_pack.weights.quantize.run import run_plan as run_plan
    from strata_pack.weights.source import HubSource as HubSource
    from strata_pack.weights.source import LocalFolder as LocalFolder
    from strata_pack.weights.source import LocalGguf as LocalGguf
    from strata_pack.weights.source import parse_source as parse_source
    from strata_pack.weights.tensor_source import GgufSource as GgufSource

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "weights.convert.convert": ("SafetensorsSource", "convert_checkpoint"),
        "weights.gguf.file": (
            "GgufFile",
            "TensorInfo",
            "open_shards",
        ),
        "weights.gguf.values": ("MetaValue",),
        "weights.hub.fetch": ("fetch_repo",),
        "weights.hub.outcome": ("FetchPlan", "FetchResult"),
        "weights.quantize.imatrix": (
            "Imatrix",
            "read_imatrix",
        ),
        "weights.quantize.plan": (
            "QuantPlan",
            "plan_quantization",
        ),
        "weights.quantize.recipes": (
            "Recipe",
            "make_recipe",
            "read_recipe",
        ),
        "weights.quantize.run": (
            "QuantResult",
            "run_plan",
        ),
        "weights.source": (
            "HubSource",
            "LocalFolder",
            "LocalGguf",
            "parse_source",
        ),
        "weights.tensor_source": ("GgufSource",),
    },
)

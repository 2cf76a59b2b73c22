"""The products of weights: ggml's, whatever the sizes, and in llama.cpp the model's own logits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.compare.full import compare_full
from strata_pack.compare.many import CompareOptions, write_reference
from strata_pack.compare.texts import Text
from strata_pack.llama import products
from strata_pack.llama.ggml import Ggml, row_nbytes
from strata_pack.llama.kernels import Kernels, Missing, processor_flags
from strata_pack.llama.logits import open_logits
from strata_pack.llama.logits_native import load_library
from strata_pack.llama.products import PRODUCT_TYPES, functions, largest_difference, product_kernels
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.imatrix.forward import Experts, write_model

Floats = npt.NDArray[np.float32]
VNNI = "avx512_vnni"
TYPES = sorted(PRODUCT_TYPES)
SHORT_BLOCKS = [Q.F32, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.IQ4_NL]
TEXT = " ".join(f"The {n}th hare ran over {n * n} hills." for n in range(40))


def multiply(
    library: ctypes.CDLL, type: Q, weights: npt.NDArray[np.uint8], activations: Floats, threads: int
) -> Floats:
    rows, (columns, length) = len(weights), activations.shape
    out = np.full((columns, rows), np.nan, np.float32)
    done = library.strata_multiply(
        *(type, weights.ctypes.data, rows, length, activations.ctypes.data, columns, threads, out.ctypes.data)
    )
    assert done
    return out


def written_as(type: Q, weights: Floats, ggml: Ggml) -> bytes:
    if type is Q.BF16:
        return (weights.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if type in (Q.F32, Q.F16):
        return weights.astype(np.float32 if type is Q.F32 else np.float16).tobytes()
    return bytes(ggml.quantize(type, weights))


LEVELS = ("v3", "v4", "v4 with VNNI")


@pytest.fixture(scope="module", params=LEVELS)
def library(request: pytest.FixtureRequest, variants: list[Kernels]) -> Iterator[ctypes.CDLL]:
    """A library that has kernels for products, for a processor with VNNI and for one without."""
    with opened(request.param, variants) as library:
        yield library


@contextmanager
def opened(name: str, variants: list[Kernels]) -> Iterator[ctypes.CDLL]:
    level, _, with_vnni = name.partition(" with ")
    path = next((one.path for one in variants if one.name.endswith(f"-{level}")), None)
    if path is None or (with_vnni and VNNI not in processor_flags()):
        pytest.skip(f"this processor or checkout has no kernels for {name}")
    library = ctypes.CDLL(str(path))
    library.strata_backend.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    library.strata_multiply.restype = ctypes.c_bool
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.strata_multiply.argtypes = [
        *(ctypes.c_int32, pointer, number, number, pointer, number, ctypes.c_int, pointer),
    ]
    library.strata_backend(ctypes.byref(functions(load_library())), bool(with_vnni))
    yield library
    # What the process that uses it for a model expects.
    library.strata_backend(ctypes.byref(functions(load_library())), VNNI in processor_flags())


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_products_are_those_of_ggml_but_for_the_order_of_the_last_sums(library: ctypes.CDLL, type: Q) -> None:
    assert largest_difference(load_library(), library, type) < 1e-5


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_every_processor_gives_the_same_bits(type: Q, variants: list[Kernels], ggml: Ggml) -> None:
    random = np.random.default_rng(int(type))
    weights = random.standard_normal((37, 512), np.float32)
    activations = random.standard_normal((21, 512), np.float32)
    quantized = np.frombuffer(written_as(type, weights, ggml), np.uint8).reshape(37, -1).copy()
    found = []
    for level in LEVELS:
        with opened(level, variants) as library:
            found.append(multiply(library, type, quantized, activations, 2).tobytes())
    assert len(set(found)) == 1


@settings(max_examples=25)
@given(
    type=st.sampled_from(SHORT_BLOCKS),
    rows=st.integers(1, 70),
    columns=st.one_of(st.integers(1, 70), st.sampled_from([512, 513, 1030])),
    blocks=st.integers(1, 5),
    threads=st.integers(1, 4),
)
def test_a_product_does_not_depend_on_its_neighbours_or_threads(
    library: ctypes.CDLL, ggml: Ggml, type: Q, rows: int, columns: int, blocks: int, threads: int
) -> None:
    random = np.random.default_rng(rows * columns + blocks)
    weights = random.standard_normal((rows, 32 * blocks), np.float32)
    activations = random.standard_normal((columns, 32 * blocks), np.float32)
    quantized = np.frombuffer(written_as(type, weights, ggml), np.uint8).reshape(rows, -1).copy()
    whole = multiply(library, type, quantized, activations, threads)
    alone = multiply(library, type, quantized[-1:].copy(), activations[-1:].copy(), 1)
    assert whole[-1, -1] == alone[0, 0]
    assert np.isfinite(whole).all()


def test_weights_of_all_bits_overflow_no_sum(library: ctypes.CDLL) -> None:
    """The largest quants of eight bits, in both factors: -128 is one that ggml does not write but a file may hold."""
    weights = np.zeros((8, row_nbytes(Q.Q8_0, 512)), np.uint8)
    for block in range(16):
        weights[:, 34 * block : 34 * block + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        weights[:, 34 * block + 2 : 34 * block + 34] = np.array([-128] * 8, np.int8).view(np.uint8)[:, None]
    activations = np.full((1, 512), 127, np.float32)
    assert multiply(library, Q.Q8_0, weights, activations, 1)[0] == pytest.approx([-128 * 127 * 512] * 8, rel=1e-6)


def test_a_type_without_kernels_is_not_multiplied(library: ctypes.CDLL) -> None:
    assert largest_difference(load_library(), library, Q.TQ2_0) == float("inf")


@pytest.fixture(scope="module", params=[Experts(), Experts(count=4, used=2)], ids=["dense", "experts"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder / "source.gguf", request.param)
    with GgufSource(folder / "source.gguf") as source:
        run_plan(plan_quantization(source, "Q4_1"), folder / "model.gguf")
    return folder / "model.gguf"


def logits(model: Path, kernels: products.ProductKernels) -> tuple[str, Floats]:
    options = {"text_name": "hares", "context": 128, "limit": 2, "threads": 2}
    with open_logits(model, TEXT, kernels=kernels, **options) as stream:  # type: ignore[arg-type]
        return stream.header.kernels, np.concatenate([block.copy() for block in stream.blocks()])


def test_llama_cpp_uses_them_and_its_logits_are_the_same_to_a_rounding(model: Path, kernels: Kernels) -> None:
    if not kernels.multiplies:
        pytest.skip("no kernels for products on this processor")
    (own, ours), (other, theirs) = logits(model, "auto"), logits(model, "ggml")
    assert (own, other) == (kernels.name, "ggml")
    assert not np.array_equal(ours, theirs)
    # Rounding the activations to eight bits makes steps of a hundredth out of the last bit of a sum.
    assert abs(ours - theirs).max() < 0.1 * theirs.std()


def test_a_comparison_names_what_multiplied(model: Path) -> None:
    text = Text("hares", TEXT)
    found = compare_full(model, model, text, context=64, limit=1, kernels="ggml")
    assert (found.kernels, found.kl_mean) == ("ggml", 0)


def test_logits_are_kept_for_the_kernels_that_made_them(model: Path, tmp_path: Path) -> None:
    text = Text("hares", TEXT)
    for choice in ("ggml", "auto", "ggml"):
        write_reference(model, [text], CompareOptions(64, 1, keep_logits=tmp_path, kernels=choice))
    assert len(list(tmp_path.iterdir())) == len({"ggml", product_kernels()})


@pytest.mark.usefixtures("kernels", "unloaded")
def test_a_kernel_that_is_not_exact_enough_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "TOLERANCE", 0.0)
    products.register_products.cache_clear()
    found = products.register_products()
    products.register_products.cache_clear()
    assert isinstance(found, Missing)
    assert "differ from ggml's by" in found.reason or "there are none" in found.reason

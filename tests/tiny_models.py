"""Tiny checkpoints in Hugging Face layout, the same bytes from the same seed, each in well under a second.

A byte-level BPE of 4,096 tokens is trained on words made from the seed; the weights are random. ``MODELS`` names the
variants that the conversion is proved on. Run alone (``python -m tests.tiny_models NAME FOLDER``) it writes one.
"""

from __future__ import annotations

import functools
import json
import random
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.tiny_configs import QWEN2_SPLIT
from tests.tiny_shapes import ngram_heads, tensor_shapes
from tests.tiny_variants import MODELS, Tiny

__all__ = ["MODELS", "QWEN2_SPLIT", "Tiny", "tensor_shapes", "weights", "write_model", "write_tiny"]

Array = npt.NDArray[Any]

SEED = 20251129
VOCABULARY = 4096
"""Tokens that are trained; the added ones come behind them."""


def write_model(name: str, folder: Path) -> Path:
    """Write the variant ``name`` into ``folder`` (made at need) and return it.

    The name of the folder goes into the GGUF's metadata: compare conversions of equally named folders only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in _files(name).items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(data)
    return folder


@functools.lru_cache(maxsize=6)
def _files(name: str) -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tiny(MODELS[name], folder)
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_tiny(tiny: Tiny, folder: Path) -> None:
    """Write a variant, also one that has no name, into a folder that is there."""
    write_json(folder / "config.json", tiny.config)
    if tiny.sentence_piece:
        (folder / "tokenizer.model").write_bytes(sentence_piece_model())
    else:
        (folder / "tokenizer.json").write_text(tokenizer_json(tiny), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", tiny.tokenizer_config)
    for file, text in tiny.files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    write_weights(folder, dict(weights(tiny)), tiny.dtype, tiny.shards)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


@functools.cache
def _trained(split: str) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    return tokenizer.to_str()


def _sentences() -> Iterator[str]:
    dice = random.Random(SEED)
    syllables = [c + v for c in "bdfghjklmnprstvwz" for v in ("a", "e", "i", "o", "u", "ä", "oo")]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(6000)]
    weights_ = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(1500):
        line = dice.choices(words, weights_, k=dice.randint(4, 24))
        yield " ".join(line).capitalize() + f", {dice.randint(0, 99999)}.\n"


def tokenizer_json(tiny: Tiny) -> str:
    """Return the variant's tokenizer.json."""
    tokenizer = Tokenizer.from_str(_trained(tiny.split))
    assert tokenizer.get_vocab_size() == VOCABULARY
    for text, special in tiny.added:
        token = AddedToken(text, special=special, normalized=False)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    found = json.loads(tokenizer.to_str())
    found["post_processor"] = tiny.post_processor
    return json.dumps(found, ensure_ascii=False)


def sentence_piece_model() -> bytes:
    """Return a tokenizer.model of 300 pieces: unknown, two control, bytes, words, one user-defined, one unused."""
    normal, unknown, control, user_defined, unused, byte = range(1, 7)
    pieces = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    pieces += [(f"<0x{n:02X}>", 0.0, byte) for n in range(256)]
    words = [f"\u2581{a}{b}" for a in "abcdeé" for b in "mnopqr"]
    pieces += [(word, -float(n), normal) for n, word in enumerate([*words, "a", "b", "c"])]
    pieces += [("<user>", 0.0, user_defined), ("<unused>", 0.0, unused)]

    def field(number: int, wire: int, data: bytes) -> bytes:
        return bytes([number << 3 | wire]) + data

    def message(number: int, data: bytes) -> bytes:
        size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
        return field(number, 2, size + data)

    model = b"".join(
        message(1, message(1, text.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([kind])))
        for text, score, kind in pieces
    )
    bpe, byte_fallback = field(3, 0, bytes([2])), b"\x98\x02\x01"  # model_type = 3, byte_fallback = 35
    return model + message(2, bpe + byte_fallback) + message(3, message(1, b"identity"))


def weights(tiny: Tiny) -> Iterator[tuple[str, Array]]:
    """Yield name and values of every tensor: float32, integers as int64, 8-bit codes as uint8."""
    dice = np.random.default_rng(SEED)
    config = {**tiny.config, **tiny.config.get("text_config", {})}
    for name, shape in tensor_shapes(tiny):
        if "ple_embedding." in name and "ngram_embedding" not in name:
            yield name, _ngram_constants(name.rpartition(".")[2], config)
            continue
        # Norms lie around 1, the rest around 0; A_log is positive as in a trained model.
        base = 1.0 if name.endswith("norm.weight") else 0.0
        values = dice.standard_normal(shape, dtype=np.float32) * np.float32(0.05) + np.float32(base)
        if name.endswith("A_log"):
            yield name, _clear_of_ties(np.abs(values) * 40, tiny.dtype)
        elif tiny.fp8 and len(shape) > 1 and name.endswith(_IN_8_BITS):
            codes = dice.integers(0, 0x7F, shape, dtype=np.uint8)
            yield name, codes | dice.integers(0, 2, shape, dtype=np.uint8) << 7
            blocks = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
            yield f"{name}_scale_inv", dice.random(blocks, dtype=np.float32) * np.float32(1e-3)
        elif tiny.int4 and len(shape) == 2 and name.endswith(_IN_8_BITS):
            yield from _packed(name, shape, dice, zeros=tiny.int4 == "zeros")
        else:
            yield name, values


def _packed(
    name: str, shape: tuple[int, ...], dice: np.random.Generator, *, zeros: bool
) -> Iterator[tuple[str, Array]]:
    """Yield a weight of four bits as compressed-tensors packs it: eight values a word, a scale for each 32."""
    rows, columns = shape
    words = dice.integers(0, 1 << 32, (rows, columns // 8), dtype=np.uint32)
    yield f"{name}_packed", words.view(np.int32)
    yield f"{name}_scale", dice.random((rows, columns // 32), dtype=np.float32) * np.float32(1e-2)
    yield f"{name}_shape", np.array(shape, dtype=np.int64)
    if zeros:
        points = dice.integers(0, 1 << 32, (-(-rows // 8), columns // 32), dtype=np.uint32)
        yield f"{name}_zero_point", points.view(np.int32)


_IN_8_BITS = ("_proj.weight", "gate_up_proj", "experts.down_proj", "in_proj_qkv.weight", "in_proj_z.weight")


def _ngram_constants(name: str, config: Mapping[str, Any]) -> Array:
    sizes, _ = ngram_heads(config)
    if name == "layer_multipliers":
        # Odd, and of as many bits as in the released model: no float holds them.
        return np.array([(24_000_000_000_000 + 977 * n) | 1 for n in range(config["ngram_size"])], dtype=np.int64)
    return np.array(sizes if name == "ngram_heads_vocab_sizes" else np.cumsum([0, *sizes[:-1]]), dtype=np.int64)


def _clear_of_ties(values: Array, dtype: str) -> Array:
    """Return values near ``values`` whose exponential lies close to a float32: every library rounds it alike."""
    found = []
    for value in values:
        while True:
            stored = _rounded(np.float32(value), dtype)
            exact = np.exp(np.float64(stored))
            ulp = np.spacing(np.float32(exact))
            if abs(exact - np.float64(np.float32(exact))) < ulp / 8:
                break
            value = value * np.float32(1.013)
        found.append(stored)
    return np.array(found, dtype=np.float32)


def _rounded(value: np.float32, dtype: str) -> np.float32:
    if dtype == "F32":
        return value
    if dtype == "F16":
        return np.float32(np.float16(value))
    bits = np.frombuffer(encode(np.array([value]), "BF16"), dtype="<u2").astype(np.uint32) << 16
    return np.float32(bits.view(np.float32)[0])


def encode(values: Array, dtype: str) -> bytes:
    """Return float32 values as the bytes of a safetensors dtype."""
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    return bytes(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes())


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write a safetensors file of (dtype, shape, bytes) by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, _, data in tensors.values())


_AS_THEY_ARE = {np.dtype(np.int64): "I64", np.dtype(np.int32): "I32", np.dtype(np.uint8): "F8_E4M3"}


def _stored(values: Array, dtype: str) -> tuple[str, tuple[int, ...], bytes]:
    kept = _AS_THEY_ARE.get(values.dtype)
    return (kept, values.shape, values.tobytes()) if kept else (dtype, values.shape, encode(values, dtype))


def write_weights(folder: Path, tensors: Mapping[str, Array], dtype: str, shards: int) -> None:
    """Write tensors as one file, or as shards with their index: floats as ``dtype``, others as they are."""
    encoded = {name: _stored(values, dtype) for name, values in tensors.items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", encoded)
        return
    names = list(encoded)
    weight_map = {}
    for shard in range(shards):
        part = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file, {name: encoded[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(data) for _, _, data in encoded.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]))

"""A table of 2 GB in shards is converted in little memory: it is read where it is stored, a few rows at a time."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import write_json, write_model

CODE = """
import re, sys
from pathlib import Path
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
with SafetensorsSource.open(sys.argv[1], sys.argv[3]) as source:
    size = convert_checkpoint(source, Path(sys.argv[2])).size
print(size, int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1000)
"""
PARTS = 8
WIDTH = 160


def write_table(folder: Path, nbytes: int, dtype: str, itemsize: int) -> None:
    """Give the variant "flash-text" a table of ``nbytes`` in shards, as files that are mostly holes."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    name = next(name for name in header if ".ngram_embedding.shard_0" in name)
    del header[name]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    weight_map = {tensor: path.name for tensor in header if tensor != "__metadata__"}
    rows = nbytes // PARTS // WIDTH // itemsize
    for part in range(PARTS):
        shard = name.replace("shard_0", f"shard_{part}")
        size = rows * WIDTH * itemsize
        entry = {shard: {"dtype": dtype, "shape": [rows, WIDTH], "data_offsets": [0, size]}}
        text = json.dumps(entry).encode()
        other = folder / f"table-{PARTS - part}.safetensors"
        with other.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size)
        weight_map[shard] = other.name
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "split_ngram_parts": PARTS, "ple_embed_dim": 8 * WIDTH})


def peak(folder: Path, out: Path, outtype: str) -> tuple[int, int]:
    """Return the size of the file and the peak memory of the process that converts, both in bytes.

    The kernel counts the parent's memory into getrusage's peak of a child; its own high-water mark has only its own.
    """
    text = subprocess.check_output([sys.executable, "-c", CODE, str(folder), str(out), outtype], text=True)
    size, memory = map(int, text.split())
    return size, memory


def test_table_of_200_mb_is_never_held(tmp_path: Path) -> None:
    folder = write_model("flash-text", tmp_path / "model")
    write_table(folder, 200_000_000, "BF16", 2)
    size, memory = peak(folder, tmp_path / "x.gguf", "bf16")
    assert size > 200_000_000
    assert memory < 300_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("outtype", ["bf16", "f32", "q8_0"])
def test_table_of_2_gb_converts_within_300_mb(tmp_path: Path, outtype: str) -> None:
    folder = write_model("flash-text", tmp_path / "model")
    write_table(folder, 2_000_000_000, "BF16", 2)
    size, memory = peak(folder, tmp_path / "x.gguf", outtype)
    assert size > 1_000_000_000
    assert memory < 300_000_000

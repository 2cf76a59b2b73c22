"""Creates the weights on which a kernel is tested, and has the hashes of ggml's output for them on x86-64.

Every float is an integer times a power of two, so that all machines compute the same ones. In addition to typical
weights there are the edge cases that an almost correct kernel gets wrong: zero blocks, constant blocks, very different
scales, denormals, overflow, ties.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strata_pack.llama.ggml import TABLE_TYPES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q

Floats = npt.NDArray[np.float32]

COLUMNS = 512
OVERFLOWING = 6
"""The row whose squares no float holds. For the types with search tables ggml ends the process there, so they get a row
with zero sub-blocks instead."""


def _mixed(count: int, salt: int) -> npt.NDArray[np.int64]:
    """Return ``count`` pseudo-random numbers of 20 bits."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(salt * 40503)
    numbers = (numbers ^ (numbers >> np.uint64(15))) * np.uint64(2246822519)
    numbers = (numbers ^ (numbers >> np.uint64(13))) * np.uint64(3266489917)
    mixed: npt.NDArray[np.int64] = ((numbers >> np.uint64(9)) & np.uint64(0xFFFFF)).astype(np.int64)
    return mixed


def _signed(salt: int) -> npt.NDArray[np.float64]:
    """Return a row of multiples of 2^-19 between -1 and 1."""
    return (_mixed(COLUMNS, salt) - 0x80000) / 0x80000


def _powers(salt: int, size: int, low: int, high: int) -> npt.NDArray[np.float64]:
    """Return a row in which each ``size`` elements are the same power of two, from 2^low to 2^high."""
    exponents = low + _mixed(COLUMNS // size, salt) % (high - low + 1)
    return np.repeat(np.ldexp(1.0, exponents), size)


@lru_cache(maxsize=2)
def _probe(*, overflow: bool) -> tuple[Floats, Floats]:
    """Return weights, shape (15, 512), each row of another kind, and importances, shape (512,), some 0.

    The products below are exact in float64 and are rounded once, to float32.
    """
    position = np.arange(COLUMNS)
    rows = [
        _signed(1) ** 3,
        _signed(2) * 2.0**-5,
        np.where((position >= 256) & (position % 7 == 0), _signed(3), 0.0),
        _signed(4) * _powers(4, 16, -12, 12),
        _signed(5) * _powers(5, 32, -30, 30),
        (_mixed(COLUMNS, 6) % 4096 - 2048) * 2.0**-149,
        _signed(7) * _powers(7, 64, 60, 127),
        np.repeat(_signed(8)[::32], 32),
        _signed(9) ** 2 + 1,
        -(_signed(10) ** 2) - 0.25,
        (_mixed(COLUMNS, 11) % 16 - 8).astype(np.float64),
        np.where(position % 3 == 0, -0.0, np.round(_signed(12) * 64) / 64),
        _signed(13) * _powers(13, 32, -66, -46),
        np.repeat(_signed(14)[::16], 16) * (1 + (_mixed(COLUMNS, 15) % 5 - 2) * 2.0**-23),
        np.where(position % 32 == 0, 127.0, _mixed(COLUMNS, 18) % 253 - 126.5),
    ]
    mixed = _mixed(COLUMNS, 16)
    importance = np.where(mixed % 19 == 0, 0.0, (mixed % 4096 + 1) * _powers(17, 8, -12, 2))
    if not overflow:
        rows[OVERFLOWING] = np.where(position // 32 % 3 == 1, 0.0, _signed(19))
    return np.array(rows, np.float32), importance.astype(np.float32)


def kernel_probe(type: Q) -> tuple[Floats, Floats]:
    """Return the weights and importances that prove a kernel for ``type``. Do not modify them."""
    return _probe(overflow=type not in TABLE_TYPES)


PROBE_HASHES: dict[tuple[str, bool], str] = {
    ("Q8_0", False): "cb389bddcd91d29dde3683ae976c4c05776bd7d913971bc76d066d7d5f158ff3",
    ("Q8_0", True): "cb389bddcd91d29dde3683ae976c4c05776bd7d913971bc76d066d7d5f158ff3",
    ("Q2_K", False): "a5319486ac374a9d31b3f4563289189563e66dd2a162cec4906e9d816dbccc83",
    ("Q4_K", False): "473847a744935d85f05bbf07afa47ae2e391e63bab3e7f7bb4534bd116f3a83b",
    ("Q5_K", False): "95b9799c6d368b6ed5d5fbdbf49986eec39e112867225af6a9ba97a33f572f6f",
    ("Q6_K", False): "17991a4a3069eb726eafae58547a5ae07fb89dc55d6b2b18a8749f72f0a6768e",
    ("IQ4_NL", False): "fbabf52057bac56bc790edf34bf99f64881c435015277b7c9bf86c842e30a489",
    ("IQ4_XS", False): "3fdd94b475355f055e674a4c164b4f835e3040021df4552108d8add238ee915c",
    ("IQ3_S", False): "d9fe37a7accc2771ab3d77f4a8cd0c2b61957dca89c102fa8a76c26fd588d997",
    ("Q4_0", True): "c09e802e4302096a4977ddd9b0acdf749e4a4f0dd01e244f113206bfb2e3da3a",
    ("Q4_1", True): "6d91c4dc609f7c42d5f3777bec861cff7946ade310c89c40ffc91eda13514d68",
    ("Q5_0", True): "3af5fd48aaa7e4254eb8af3f41b1d36457799c91542ce1890f59d901297e9a89",
    ("Q5_1", True): "52f2113be06703cff450fe91f3547f52d7049b160cc422a11e05b26d11afd27c",
    ("Q2_K", True): "948e3b3c91b670dc16fd954ee4865ef2ad69da5e7e3a6944d366f428f2b33797",
    ("Q3_K", True): "c42963adcb0effc48c356a548d81537e991501d7598b6c09dd7480f27cb43afb",
    ("Q4_K", True): "50584ebda142af9b02b05c29cfb83bc33ac2a19472523f5d2f67f03645c1458b",
    ("Q5_K", True): "e2f666783eb07e3d4d1e28107fc4b51d8a05d75f2c7f4d5bde8c457f1bd29456",
    ("Q6_K", True): "4ec325a306429af2f8de756b89c99ae36aef93dec35a4313172237463f553645",
    ("IQ4_NL", True): "7adbb7585637882285a5c4a00110f3ed2d8c59cdc4d91c890e5c638e1ede9f60",
    ("IQ4_XS", True): "86fa0fae6cb83c2590dcc02f1786d7e707e8d7a26def2b540e4f3e104c22f7e8",
    ("IQ2_XXS", True): "a257a4a85a435a0338ca3d1b761c44dc6d34624794c09c20d1a922fd945795a8",
    ("IQ2_XS", True): "d85a8a13842877b44d85231df8cc94e47da0b868c540d373ecb089fe3615df75",
    ("IQ2_S", True): "1376a1befe9cd1898cd150b8034a64c721b5a5b9431100d6ec61c345eea17cca",
    ("IQ3_XXS", True): "b9adc8a867e0daf77911978c9c89319dd2be92025785fd24966afc29b5457215",
    ("IQ3_S", True): "630a50d368fa2d8399f16f7e2372f933bc461f30ed9f6238683df912104108ad",
}
"""The SHA-256 of the probe as the pinned wheel on x86-64 writes it, by type and use of importances."""

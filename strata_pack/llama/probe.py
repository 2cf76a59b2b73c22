"""Makes the blocks that a kernel is tested on, with the hashes of what ggml writes for them on x86-64.

Every float is an integer times a power of two, so that all machines make the same ones. Besides what models hold there
is what a kernel that is almost right gets wrong: zero blocks, constant ones, scales far apart, denormals, overflow.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

COLUMNS = 512


def _mixed(count: int, salt: int) -> npt.NDArray[np.int64]:
    """Return ``count`` well mixed numbers of 20 bits."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(salt * 40503)
    numbers = (numbers ^ (numbers >> np.uint64(15))) * np.uint64(2246822519)
    numbers = (numbers ^ (numbers >> np.uint64(13))) * np.uint64(3266489917)
    mixed: npt.NDArray[np.int64] = ((numbers >> np.uint64(9)) & np.uint64(0xFFFFF)).astype(np.int64)
    return mixed


def _signed(salt: int) -> npt.NDArray[np.float64]:
    """Return a row of multiples of 2^-19 between -1 and 1."""
    return (_mixed(COLUMNS, salt) - 0x80000) / 0x80000


def _powers(salt: int, size: int, low: int, high: int) -> npt.NDArray[np.float64]:
    """Return a row whose every ``size`` elements are one power of two, 2^low to 2^high."""
    exponents = low + _mixed(COLUMNS // size, salt) % (high - low + 1)
    return np.repeat(np.ldexp(1.0, exponents), size)


@lru_cache(maxsize=1)
def kernel_probe() -> tuple[Floats, Floats]:
    """Return weights (14 rows of 512, each of another kind) and importances (512, some of them 0). Do not change them.

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
    ]
    mixed = _mixed(COLUMNS, 16)
    importance = np.where(mixed % 19 == 0, 0.0, (mixed % 4096 + 1) * _powers(17, 8, -12, 2))
    return np.array(rows, np.float32), importance.astype(np.float32)


PROBE_HASHES: dict[tuple[str, bool], str] = {
    ("Q8_0", False): "fb2a32c3e62952c1d4c32fa3f9eb1ae8533942013f81b0ab9fc17fb6d5bd4083",
    ("Q8_0", True): "fb2a32c3e62952c1d4c32fa3f9eb1ae8533942013f81b0ab9fc17fb6d5bd4083",
    ("Q2_K", False): "6ebff5ef57792f2b5a8e339dd9c31e590df298f59016c345d8da64f3e1bb7efe",
    ("Q4_K", False): "34be669d20027625e4cf2e9de217b79db951675eadbf87b42a303aef22650b5d",
    ("Q5_K", False): "01a78ae9964450d99c54f27f28dfd443bf230d5fbd6b801c3e2fc15e2ec66c2f",
    ("Q6_K", False): "3845d2c11c792ef5165448ce66209dad98ebbc93a407a9217d14c10596c42513",
    ("IQ4_NL", False): "97a0d210a03d69dce5e28ff61844ba39336f85b90366487e75b73a5d4b707924",
    ("IQ4_XS", False): "4e5ba6122382d5216535ec41bd09b7f8215cbbc602ccba4d91be9998e15eb6f4",
    ("Q4_0", True): "a498802022a97fed66e1069bd7bd0a4e548fc20885853209f4a55796ae2f65cc",
    ("Q4_1", True): "ccd5225b8b3b6be2daaae3bcbdbc4f9bb93a27d357737ec0461fb6a5364fcafe",
    ("Q5_0", True): "8aac3afcc72d869780c6ba15f980a4a8b64c3f5d220c6ed5dc4a469e37eeee7a",
    ("Q5_1", True): "7103c55755591c5c0e1b8edd8351583147212bf187f0d038260ac9c21b8df96d",
    ("Q2_K", True): "07612940f03265dc17b73097cf3eea76722295f41ac4d1fbd9514facc965fe2d",
    ("Q3_K", True): "fdaee9ecee2badb895e0c6294bc39eea4fd81af5bd617e3fd61ebc830bf724cb",
    ("Q4_K", True): "4fc0000265b1d979e8d4bc70bc0f53f02d378485923f855ed111faaed09718a8",
    ("Q5_K", True): "70bcab067152c2b935324a6c7e99be78ba0a936990189204bea13647e34f1d7c",
    ("Q6_K", True): "215a4ad035549e27093f5e757becf53359ccc8db98837d055b0ea949fe283ee6",
    ("IQ4_NL", True): "0ac7441730bc5a744017ade9671d017703541a02a62c46dd2537687a2fe741f9",
    ("IQ4_XS", True): "9faf224b89fe8d1b4957f7d7bfb49c0436d3cc8e4209cfab0682965d957111dc",
}
"""By type and whether importances are used: the SHA-256 of the probe as the pinned wheel on x86-64 writes it."""

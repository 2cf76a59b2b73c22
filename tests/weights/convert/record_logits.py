"""Record the logits of a tiny Qwen3.8-Flash-Next by transformers: ``tests/data/weights/flash_logits.npz``.

    PYTHON_WITH_TORCH -m tests.weights.convert.record_logits FOLDER OUT

FOLDER holds the variant "flash"; the Python needs torch and transformers 5.24 (which knows the class) and runs here, in
the project's root. The forward pass is in float32 over 20 tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TOKENS = (17, 901, 45, 2048, 3000, 17, 901, 12, 7, 4098, 350, 351, 352, 17, 901, 45, 99, 4000, 1, 2)
"""The end-of-text token is among them: n-grams start anew at it."""


def main(folder: Path, out: Path) -> None:
    """Write the last position's logits, and the likeliest token at every position."""
    import torch  # type: ignore[import-not-found]
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([TOKENS])).logits[0].float().numpy()
    np.savez(out, last=logits[-1], likeliest=logits.argmax(axis=-1).astype(np.int32))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""llama.cpp's own conversion script, run on tiny checkpoints: the reference of ``strata-pack convert``.

It runs in a Python that has torch and transformers (the project's own has not). The script tells pre-tokenizers apart
by a hash over token ids, so it can know no tokenizer trained here; ``--pre`` answers that one question for it, and
nothing else of the script is touched.

    python reference_convert.py CONVERT_HF_TO_GGUF.PY --pre qwen2 -- FOLDER --outtype bf16 --outfile OUT
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the script with its own arguments (those behind ``--``)."""
    cut = sys.argv.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("script", type=Path)
    parser.add_argument("--pre", required=True)
    options = parser.parse_args(sys.argv[1:cut])
    sys.path.insert(0, str(options.script.parent))
    sys.argv = [str(options.script), *sys.argv[cut + 1 :]]

    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: options.pre
    runpy.run_path(str(options.script), run_name="__main__")


if __name__ == "__main__":
    main()

"""llama.cpp's own conversion script, run on tiny checkpoints: the reference of ``strata-pack convert``.

It runs in a Python that has torch and transformers (the project's own has not). The script tells pre-tokenizers apart
by a hash over token ids, so it can know no tokenizer trained here; a job's ``pre`` answers that one question for it,
and nothing else of the script is touched. Its imports take seconds, so each job is a fork of one process.

    python reference.py CONVERT_HF_TO_GGUF.PY < jobs.jsonl

Each line is ``{"pre": "qwen2", "arguments": ["FOLDER", "--outtype", "bf16", "--outfile", "OUT"]}``; each answer is
the job's exit status, and what it said if it failed.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import tempfile
import traceback
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the jobs that stdin lists, one after the other."""
    script = Path(sys.argv[1]).absolute()
    sys.path.insert(0, str(script.parent))

    from conversion.base import TextModel  # type: ignore[import-not-found]

    for line in sys.stdin:
        job = json.loads(line)
        TextModel.get_vocab_base_pre = lambda _self, _tokenizer, pre=job["pre"]: pre
        print(json.dumps(_forked(script, job["arguments"])), flush=True)


def _forked(script: Path, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            os._exit(_run(script, arguments, said))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return {"status": status, "said": said.read()[-2000:] if status else ""}


def _run(script: Path, arguments: list[str], said: Any) -> int:
    status = 0
    text = io.StringIO()
    sys.argv = [str(script), *arguments]
    with redirect_stderr(text):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as error:
            status = int(error.code or 0) if isinstance(error.code, int | None) else 1
        except BaseException:  # noqa: BLE001, the parent hears of it
            traceback.print_exc()
            status = 1
    said.write(text.getvalue())
    said.flush()
    return status


if __name__ == "__main__":
    main()

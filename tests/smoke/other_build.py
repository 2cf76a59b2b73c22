"""A ``llama-server`` of another build: the server inside an older wheel of xllamacpp, with llama-server's flags.

For builds that are in the package index and run on any processor. What the flags do not name stays as the build has it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

SCRIPT = """#!{python}
import sys
sys.path[:0] = [{packages!r}, {root!r}]
from tests.smoke.other_build import main
main(sys.argv[1:])
"""


def write_server(path: Path, packages: Path) -> Path:
    """Write the program to ``path``; it imports xllamacpp from the folder ``packages``."""
    root = str(Path(__file__).parents[2])
    path.write_text(SCRIPT.format(python=sys.executable, packages=str(packages), root=root))
    path.chmod(0o755)
    return path


def _flags(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--host", "--chat-template-file"):
        parser.add_argument(name)
    for name in ("--port", "--ctx-size", "--parallel", "--verbosity", "--n-gpu-layers", "--threads"):
        parser.add_argument(name, type=int)
    for name in ("--jinja", "--no-webui", "--kv-unified", "--no-prefill-assistant", "--no-warmup"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Serve until a signal comes."""
    import xllamacpp

    flags = _flags(arguments)
    params: Any = xllamacpp.CommonParams()
    params.model.path = flags.model
    if hasattr(params, "hostnames"):
        params.hostnames = [flags.host]
    else:
        params.hostname = flags.host
    params.port, params.n_ctx, params.n_parallel = flags.port, flags.ctx_size, flags.parallel
    params.use_jinja, params.verbosity = True, flags.verbosity
    params.kv_unified, params.warmup = flags.kv_unified, not flags.no_warmup
    params.prefill_assistant = not flags.no_prefill_assistant
    if flags.chat_template_file:
        params.chat_template = Path(flags.chat_template_file).read_text(encoding="utf-8")
    if flags.threads:
        params.cpuparams.n_threads = flags.threads
    server = xllamacpp.Server(params)
    assert server.listening_address
    while True:
        signal.pause()

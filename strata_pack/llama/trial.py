"""Tests whether a runtime works on this machine: it loads a stub model and answers once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.llama.stub_model import write_stub_model

CONTEXT = 256
TOKENS = 4


def try_runtime(runtime: Runtime, timeout_seconds: float = 60.0) -> None:
    """Raise ``EnvironmentFailure`` with the reason if ``runtime`` does not start here, or does not answer.

    A program may print its version but crash at the first layer, because of a missing instruction or library.
    """
    with tempfile.TemporaryDirectory(prefix="strata-trial-") as folder:
        model = write_stub_model(Path(folder, "stub.gguf"))
        with LlamaServer.start(
            model, runtime=runtime, context=CONTEXT, timeout_seconds=timeout_seconds, log_path=Path(folder, "log")
        ) as server:
            answer = server.client.completion("x", n_predict=TOKENS, ignore_eos=True, timeout_seconds=timeout_seconds)
    if answer.timings.predicted_n < 1:
        raise EnvironmentFailure("starts, but generates nothing", where=runtime.name)

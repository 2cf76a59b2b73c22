"""Runs the embedded llama.cpp server in a separate process: ``python -m strata_pack.llama.child SETTINGS``.

With the argument ``about`` it prints the library's version and its compute devices and exits. It imports nothing of
strata-pack, so that the interpreter of another environment can run this file.

SETTINGS is a JSON object: ``params`` (attribute of ``xllamacpp.CommonParams`` -> value, dots for nested ones) and
``ready`` (a file that receives the server's URL once the model is loaded). A crash of native code, an out-of-memory
kill or a hang affects only this process; the log goes to standard error. Signals keep their default action: they end it
at once, even while it loads, and the kernel frees all memory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

LOG_DELAY_SECONDS = 0.5
"""Seconds for the library's log thread to write the reason of a failure."""


def set_param(target: Any, name: str, value: Any) -> None:
    """Set the field ``name`` (dots for nested ones) of the library's parameters."""
    *path, last = name.split(".")
    for step in path:
        target = getattr(target, step)
    setattr(target, last, value)


def library_value(name: str, value: Any) -> Any:
    """Return the value of the field ``name`` as the library holds it: ways of guessing ahead are enumerators."""
    import xllamacpp

    if name != "speculative.types":
        return value
    return [getattr(xllamacpp.common_speculative_type, kind) for kind in value]


def serve(settings: dict[str, Any]) -> None:
    """Load the model, write the URL, and serve until a signal arrives."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    for name, value in settings["params"].items():
        set_param(params, name, library_value(name, value))
    server = xllamacpp.Server(params)
    ready = Path(settings["ready"])
    fresh = ready.with_suffix(".new")
    fresh.write_text(server.listening_address, encoding="utf-8")
    os.replace(fresh, ready)
    while True:
        signal.pause()


def about() -> None:
    """Print the version of the library's package and its compute devices as a JSON object."""
    from importlib.metadata import version

    import xllamacpp

    keys = ("name", "description", "memory_total", "memory_free")
    devices = [{key: entry[key] for key in keys} for entry in xllamacpp.get_device_info()]
    print(json.dumps({"version": version("xllamacpp"), "devices": devices}))


def main() -> None:
    """Serve, or print ``about``; on failure exit with status 1 and the library's message on standard error."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        if sys.argv[1] == "about":
            about()
        else:
            serve(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the owner reads this line in the log
        # The library's log thread drops unwritten lines at exit, which usually contain the reason.
        time.sleep(LOG_DELAY_SECONDS)
        print(f"child: {error}", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()

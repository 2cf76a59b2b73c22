"""Tables the environment variables that strata-pack reads, and gathers the facts of a bug report.

``docs/environment.md`` is written from the table by ``page``.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from strata_pack import __version__
from strata_pack.resources import cache_dir, data_dir

VARIABLES: dict[str, dict[str, str]] = {
    "strata-pack": {
        "STRATA_CACHE": "Folder of what can be made again: built runtimes, kernels, probes. See `strata-pack cache`.",
        "STRATA_LLAMA_SERVER": "Path of a llama-server binary; it is taken before the embedded llama.cpp.",
        "STRATA_CUDA_INDEX": "`runtime install --backend cuda`: the index that has xllamacpp's CUDA wheels.",
        "STRATA_API_KEY": "`serve`: the key that clients must send.",
        "STRATA_UPSTREAM_KEY": "`serve --upstream`: the key to send upstream.",
        "STRATA_KEY_PASSWORD": "`keygen`, `sign`, `publish`: the password of the private key, if it has one.",
        "STRATA_SMOKE_API_KEY": "`smoke --url`: the key to send to the server.",
    },
    "OpenTelemetry (`serve`, extra `otel`)": {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "Where traces and metrics go; without it and its two relatives nothing is sent.",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "The same for traces alone.",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "The same for metrics alone.",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "Protocol of the exporter; http/protobuf is the only one.",
        "OTEL_TRACES_EXPORTER": "otlp, console or none.",
        "OTEL_METRICS_EXPORTER": "otlp, console or none.",
        "OTEL_SERVICE_NAME": "Name of the service in traces and metrics.",
        "OTEL_RESOURCE_ATTRIBUTES": "Further attributes of the service.",
        "OTEL_SDK_DISABLED": "true: no telemetry at all.",
    },
    "Hugging Face Hub": {
        "HF_TOKEN": "Token for gated and private repositories.",
        "HF_ENDPOINT": "Address of another Hub or of a mirror.",
        "HF_HUB_OFFLINE": "1: never use the network; what the Hub cache holds is enough or the command fails.",
        "HF_HUB_CACHE": "Folder of the Hub cache.",
        "HUGGINGFACE_HUB_CACHE": "The same, by its old name.",
        "HF_HOME": "Folder of all Hugging Face data; the Hub cache is `hub` in it.",
    },
    "System": {
        "XDG_CACHE_HOME": "Folder of all caches, in place of `~/.cache`.",
        "LC_ALL": "C or POSIX: text and tables in ASCII.",
        "LANG": "The same, where LC_ALL is not set.",
        "COLUMNS": "Width of tables and help, in place of the terminal's.",
        "NO_COLOR": "Any value: no color. `--color` counts before it.",
        "GITHUB_ACTIONS": "true (set by GitHub): `golden check` prints its differences as annotations too.",
        "CXX": "`runtime build`: the C++ compiler.",
        "CUDA_PATH": "`runtime build`: folder of the CUDA toolkit.",
        "CUDA_HOME": "The same, by its other name.",
        "OMP_WAIT_POLICY": "Set: the embedded llama.cpp leaves the waiting of OpenMP threads as you set it.",
    },
}
"""Name and meaning, by whose variable it is."""

SECRET = ("KEY", "TOKEN")
"""Parts of the names whose values are not shown."""

PACKAGES = (
    "typer",
    "rich",
    "jinja2",
    "numpy",
    "gguf",
    "huggingface-hub",
    "httpx2",
    "xllamacpp",
    "starlette",
    "uvicorn",
    "pydantic",
    "httptools",
    "uvloop",
    "prometheus-client",
    "minijinja",
    "transformers",
    "tokenizers",
    "zstandard",
    "cryptography",
    "distributed",
    "opentelemetry-sdk",
)
"""What the base installation and the extras bring."""


def set_variables() -> dict[str, str]:
    """Return the variables of the table that are set; of a secret only that it is."""
    names = [name for section in VARIABLES.values() for name in section]
    return {
        name: "(set)" if any(part in name for part in SECRET) else os.environ[name]
        for name in names
        if name in os.environ
    }


def describe_environment() -> dict[str, Any]:
    """Return versions, platform, folders and variables as plain JSON values, without any secret."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {
        "strata-pack": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "packages": found,
        "folders": {
            "cache": str(cache_dir()),
            "templates": str(data_dir("templates")),
            "golden": str(data_dir("golden")),
        },
        "variables": set_variables(),
    }


def page() -> str:
    """Return ``docs/environment.md``."""
    lines = [
        "# Environment variables",
        "",
        "All that strata-pack reads; a flag counts before its variable. `strata-pack env` shows which are set.",
    ]
    for title, rows in VARIABLES.items():
        lines += ["", f"## {title}", "", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in rows.items()]
    return "\n".join([*lines, ""])

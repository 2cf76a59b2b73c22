"""Lists the environment variables that strata-pack reads, and collects the facts for a bug report.

``page`` generates ``docs/environment.md`` from the table.
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
        "STRATA_CACHE": "Cache folder: built runtimes, kernels, probes. See `strata-pack cache`.",
        "STRATA_LLAMA_SERVER": "Path of a llama-server binary; preferred to the embedded llama.cpp.",
        "STRATA_CUDA_INDEX": "`runtime install --backend cuda`: the index that has xllamacpp's CUDA wheels.",
        "STRATA_API_KEY": "`serve`: the key that clients must send.",
        "STRATA_UPSTREAM_KEY": "`serve --upstream`: the key to send upstream.",
        "STRATA_KEY_PASSWORD": "`keygen`, `sign`, `publish`: the password of the private key, if it has one.",
        "STRATA_SMOKE_API_KEY": "`smoke --url`: the key to send to the server.",
    },
    "OpenTelemetry (`serve`, extra `otel`)": {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "Where traces and metrics go; without it and the next two, nothing is sent.",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "The same for traces alone.",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "The same for metrics alone.",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "Protocol of the exporter; http/protobuf is the only one.",
        "OTEL_TRACES_EXPORTER": "otlp, console or none.",
        "OTEL_METRICS_EXPORTER": "otlp, console or none.",
        "OTEL_SERVICE_NAME": "Name of the service in traces and metrics.",
        "OTEL_RESOURCE_ATTRIBUTES": "Further attributes of the service.",
        "OTEL_SDK_DISABLED": "true: telemetry is off.",
    },
    "Hugging Face Hub": {
        "HF_TOKEN": "Token for gated and private repositories.",
        "HF_ENDPOINT": "Address of another Hub or of a mirror.",
        "HF_HUB_OFFLINE": "1: never use the network; a command fails if the Hub cache lacks a file.",
        "HF_HUB_CACHE": "Folder of the Hub cache.",
        "HUGGINGFACE_HUB_CACHE": "The same, by its old name.",
        "HF_HOME": "Folder of all Hugging Face data; the Hub cache is `hub` in it.",
    },
    "System": {
        "XDG_CACHE_HOME": "Folder of all caches, in place of `~/.cache`.",
        "LC_ALL": "C or POSIX: text and tables in ASCII.",
        "LANG": "The same, where LC_ALL is not set.",
        "COLUMNS": "Width of tables and help, in place of the terminal's.",
        "NO_COLOR": "Any value: no color. `--color` overrides it.",
        "GITHUB_ACTIONS": "true (set by GitHub): `golden check` prints its differences as annotations too.",
        "CXX": "`runtime build`: the C++ compiler.",
        "CUDA_PATH": "`runtime build`: folder of the CUDA toolkit.",
        "CUDA_HOME": "The same, by its other name.",
        "OMP_WAIT_POLICY": "If set, the embedded llama.cpp keeps this wait policy of OpenMP threads.",
    },
}
"""Name and meaning, grouped by the program or standard that defines the variable."""

SECRET = ("KEY", "TOKEN")
"""A variable whose name contains one of these is secret: its value is not shown."""

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
"""The packages of the base installation and of the extras."""


def set_variables() -> dict[str, str]:
    """Return the variables of the table that are set; the value of a secret is replaced by a note that it is set."""
    names = [name for section in VARIABLES.values() for name in section]
    return {
        name: "(set)" if any(part in name for part in SECRET) else os.environ[name]
        for name in names
        if name in os.environ
    }


def describe_environment() -> dict[str, Any]:
    """Return versions, platform, folders and variables as plain JSON values, without secrets."""
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
        "All variables that strata-pack reads. A flag overrides its variable. `strata-pack env` shows which are set.",
    ]
    for title, rows in VARIABLES.items():
        lines += ["", f"## {title}", "", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in rows.items()]
    return "\n".join([*lines, ""])

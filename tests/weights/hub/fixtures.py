"""One repository for the fetch tests, and faults that do not make us wait."""

from __future__ import annotations

import random
from collections.abc import Callable

from strata_pack.weights.hub.connection import RetryPolicy
from strata_pack.weights.hub.outcome import FetchResult
from tests.hub_repos import Fault

REPO = "org/model"
WEIGHTS = "model.safetensors"
QUICK = RetryPolicy(tries=4, base_seconds=0.01, cap_seconds=0.02, longest_wait_seconds=2.0, timeout_seconds=5.0)
BODY = random.Random(7).randbytes(300_000)
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a":1}', WEIGHTS: BODY, "pytorch_model.bin": b"pickle"}
SELECTED = ["config.json", WEIGHTS, "tokenizer.json"]
TOTAL = sum(len(FILES[name]) for name in SELECTED)

Fetch = Callable[..., FetchResult]

ODD_FOR_ALL = {
    "a redirect off the web": Fault(status=302, headers={"Location": "ftp://127.0.0.1/x"}),
    "a redirect to a broken address": Fault(status=302, headers={"Location": "http://[::1"}),
    "a redirect to a name that is too long": Fault(status=302, headers={"Location": f"http://{'a' * 300}.example/"}),
    "a longer pause than any limit": Fault(status=429, headers={"Retry-After": "9" * 400}),
}
"""Answers that end any request to the Hub with one sentence."""

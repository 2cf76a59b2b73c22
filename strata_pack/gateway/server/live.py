"""The live page at ``/``: one file without a build step, with a content security policy against loading anything
else."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re


def live_page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers."""
    page = importlib.resources.files(__package__).joinpath("live.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; script-src {_hash(page, 'script')}; "
        f"style-src {_hash(page, 'style')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return page.encode("utf-8"), headers


def _hash(page: str, tag: str) -> str:
    """Return the CSP source of the one inline ``<tag>`` of the page."""
    (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inner.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"

"""What the head of a model card may do to a YAML reader: name values twice, or fail with one of many exceptions.

A few hundred bytes of nested aliases stand for gigabytes; readers expand them, and merge keys even while they load.
"""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from strata_pack.errors import BadInput

MALFORMED = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
"""What PyYAML raises for a malformed text: its constructors let the exceptions of Python's types through."""


def refuse_aliases(head: str, where: str | Path) -> None:
    """Raise ``BadInput`` if ``head`` has a YAML alias, ``yaml.YAMLError`` if it is no YAML."""
    if "*" not in head:  # the scan is slow, and few cards have one
        return
    for token in yaml.scan(head):
        if isinstance(token, yaml.AliasToken):
            raise BadInput(
                f"the head of the model card has a YAML alias (*{token.value[:40]})",
                where=where,
                remedy="write the value in its place",
            )

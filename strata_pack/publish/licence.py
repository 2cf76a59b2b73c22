"""Check whether the source's licence lets anybody redistribute a pack, and ask where it is unclear.

This is no legal advice: a licence known to allow redistribution of copies and modified versions passes; for every
other one the publisher has to confirm that the terms were read.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_pack.pack.layout import Pack

FREE = frozenset(
    {
        *("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "isc", "zlib", "unlicense"),
        *("wtfpl", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0"),
        *("gpl", "gpl-2.0", "gpl-3.0", "agpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0", "mpl-2.0", "epl-1.0", "epl-2.0"),
        *("eupl-1.1", "eupl-1.2", "afl-3.0", "artistic-2.0", "bsl-1.0", "ecl-2.0", "ms-pl", "ncsa", "ofl-1.1"),
        *("osl-3.0", "postgresql", "pddl", "odbl", "cdla-permissive-1.0", "cdla-permissive-2.0", "lppl-1.3c"),
    }
)
"""Licences (Hub identifiers) under which anybody may redistribute copies and modified versions."""

TERMS = {
    "cc-by-nd-4.0": "forbids changed versions",
    "cc-by-nc-nd-3.0": "forbids changed versions and commercial use",
    "cc-by-nc-nd-4.0": "forbids changed versions and commercial use",
    "other": "is one of its own",
    "unknown": "is not known",
}
"""Why a licence needs reading."""


def questions(packs: Sequence[Pack], gated: Sequence[str] = ()) -> list[str]:
    """Return the questions to answer before ``packs`` are published; ``gated`` are gated source repositories."""
    found = [f"the source {repo} is gated: access to it is given to each person by its owner" for repo in gated]
    for pack in packs:
        source = pack.manifest["source"]
        licence = source.get("license")
        if licence is None:
            found.append(f"{pack.path.name}: its source names no licence")
        elif licence["id"] not in FREE:
            name = licence.get("name", licence["id"])
            why = TERMS.get(
                licence["id"], "forbids commercial use" if "-nc-" in licence["id"] else "has terms of its own"
            )
            link = f" ({licence['link']})" if "link" in licence else ""
            found.append(f"{pack.path.name}: the licence {name} of its source {why}{link}")
    return list(dict.fromkeys(found))

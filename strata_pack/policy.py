"""``strata-pack.toml``: justified exceptions to the rules of ``template lint`` and the checks of ``verify``.

    [[exception]]
    rule = "ST313"                     # a lint rule, or verify/CHECK
    reason = "the vendor closes the turn in the next message"
    until = 2027-03-01                 # the last day it counts
    where = "Qwen3-*"                  # optional: which packs or templates, by name

An exception counts until the end of its day; after that the rule counts again, and the exception itself is an error
until somebody renews or removes it. What nobody justified or dated is refused.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes
from strata_pack.suggest import unknown

NAME = "strata-pack.toml"
LIMIT = 1 << 20
_KEYS = {"rule": str, "reason": str, "until": datetime.date, "where": str}
_NEEDED = ("rule", "reason", "until")


@dataclass(frozen=True)
class Excuse:
    """One exception: ``until`` is the last day it counts, ``where`` a pattern of names ("*" for all)."""

    rule: str
    reason: str
    until: datetime.date
    where: str = "*"

    def covers(self, rule: str, name: str) -> bool:
        """Whether this is about ``rule`` on the pack or template ``name``."""
        return rule == self.rule and fnmatchcase(name, self.where)

    @property
    def note(self) -> str:
        """Why and how long, as words."""
        return f"excepted until {self.until}: {self.reason}"

    @property
    def overdue(self) -> str:
        """What is said of it once it has ended."""
        return f"the exception to {self.rule} ended on {self.until} ({self.reason}): renew or remove it"


@dataclass(frozen=True)
class Policy:
    """The exceptions of one file, by whether they still count."""

    path: Path | None = None
    current: tuple[Excuse, ...] = ()
    expired: tuple[Excuse, ...] = ()

    def excuse(self, rule: str, name: str) -> Excuse | None:
        """Return the exception that lets ``rule`` pass on the pack or template ``name``, if there is one."""
        return next((one for one in self.current if one.covers(rule, name)), None)


def read_policy(
    path: Path | None,
    known: Collection[str],
    kept: Collection[str] = (),
    today: datetime.date | None = None,
) -> Policy:
    """Read the policy in ``path``; ``None`` means ``strata-pack.toml`` in this folder, if it is there.

    ``known`` are all rules there are, ``kept`` those of them that nothing excuses. Raises ``BadInput`` for a file that
    is missing, malformed, or names a rule that is kept, ``WrongUse`` for one that is unknown.
    """
    if path is None:
        path = Path(NAME)
        if not path.is_file():
            return Policy()
    try:
        value = tomllib.loads(read_bytes(path, LIMIT).decode())
    except ValueError as error:
        raise BadInput(f"is not TOML ({error})", where=path) from None
    entries = value.pop("exception", [])
    if value or not isinstance(entries, list):
        unknown = next(iter(value), "exception")
        raise BadInput(f"has {unknown!r}, and only [[exception]] is known", where=path)
    found = [_excuse(entry, index, known, kept, path) for index, entry in enumerate(entries, 1)]
    day = today or datetime.date.today()
    return Policy(
        path,
        tuple(one for one in found if one.until >= day),
        tuple(one for one in found if one.until < day),
    )


def _excuse(entry: Any, index: int, known: Collection[str], kept: Collection[str], path: Path) -> Excuse:
    place = f"exception {index}"
    if not isinstance(entry, dict):
        raise BadInput(f"{place} is no table", where=path, remedy="write [[exception]]")
    for key, value in entry.items():
        if key not in _KEYS:
            raise unknown(f"key of an exception ({place})", key, _KEYS, where=str(path))
        if not isinstance(value, _KEYS[key]) or isinstance(value, datetime.datetime) or value == "":
            kind = "a day, as 2027-03-01" if key == "until" else "a text in quotes"
            raise BadInput(f"{place}: {key} must be {kind}", where=path)
    for key in _NEEDED:
        if key not in entry:
            raise BadInput(f"{place} has no {key}", where=path, remedy="each needs rule, reason and until")
    if entry["rule"] not in known:
        raise unknown(f"rule ({place})", entry["rule"], sorted(known), where=str(path))
    if entry["rule"] in kept:
        raise BadInput(f"{place}: nothing excuses {entry['rule']}", where=path, remedy="repair what it finds")
    return Excuse(**entry)

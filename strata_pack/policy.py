"""``strata-pack.toml``: justified exceptions to the rules of ``template lint`` and the checks of ``verify``.

    [[exception]]
    rule = "ST313"                     # a lint rule, or verify/CHECK
    reason = "the vendor closes the turn in the next message"
    until = 2027-03-01                 # the last day on which it applies
    where = "Qwen3-*"                  # optional: pattern of the names of packs or templates

An exception applies until the end of its day. After that day the rule applies again, and the expired exception is an
error until it is renewed or removed. An exception without a reason or a date is refused.
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
class RuleException:
    """One ``[[exception]]``: ``until`` is its last day, ``where`` a pattern of names ("*" for all)."""

    rule: str
    reason: str
    until: datetime.date
    where: str = "*"

    def covers(self, rule: str, name: str) -> bool:
        """Return whether this exception is for ``rule`` on the pack or template ``name``."""
        return rule == self.rule and fnmatchcase(name, self.where)

    @property
    def note(self) -> str:
        """The reason and the last day, for a report."""
        return f"excepted until {self.until}: {self.reason}"

    @property
    def expired_note(self) -> str:
        """The error message of an expired exception."""
        return f"the exception to {self.rule} ended on {self.until} ({self.reason}): renew or remove it"


@dataclass(frozen=True)
class Policy:
    """The exceptions of one file, valid ones and expired ones."""

    path: Path | None = None
    current: tuple[RuleException, ...] = ()
    expired: tuple[RuleException, ...] = ()

    def exception(self, rule: str, name: str) -> RuleException | None:
        """Return the valid exception to ``rule`` for the pack or template ``name``, or ``None``."""
        return next((one for one in self.current if one.covers(rule, name)), None)


def read_policy(
    path: Path | None,
    known: Collection[str],
    kept: Collection[str] = (),
    today: datetime.date | None = None,
) -> Policy:
    """Read the policy in ``path``; ``None`` means ``strata-pack.toml`` in the working directory, if it exists.

    ``known`` are all existing rules, ``kept`` the rules that allow no exception. Raises ``BadInput`` for a file that is
    missing, malformed, or names a rule of ``kept``, ``WrongUse`` for an unknown rule.
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
        raise BadInput(f"has the key {unknown!r}; only [[exception]] is allowed", where=path)
    found = [_exception(entry, index, known, kept, path) for index, entry in enumerate(entries, 1)]
    day = today or datetime.date.today()
    return Policy(
        path,
        tuple(one for one in found if one.until >= day),
        tuple(one for one in found if one.until < day),
    )


def _exception(entry: Any, index: int, known: Collection[str], kept: Collection[str], path: Path) -> RuleException:
    place = f"exception {index}"
    if not isinstance(entry, dict):
        raise BadInput(f"{place} is no table", where=path, remedy="write [[exception]]")
    for key, value in entry.items():
        if key not in _KEYS:
            raise unknown(f"key of an exception ({place})", key, _KEYS, where=str(path))
        if not isinstance(value, _KEYS[key]) or isinstance(value, datetime.datetime) or value == "":
            kind = "a date, such as 2027-03-01" if key == "until" else "a quoted string"
            raise BadInput(f"{place}: {key} must be {kind}", where=path)
    for key in _NEEDED:
        if key not in entry:
            raise BadInput(f"{place} has no {key}", where=path, remedy="each needs rule, reason and until")
    if entry["rule"] not in known:
        raise unknown(f"rule ({place})", entry["rule"], sorted(known), where=str(path))
    if entry["rule"] in kept:
        raise BadInput(f"{place}: {entry['rule']} allows no exception", where=path, remedy="repair what it finds")
    return RuleException(**entry)

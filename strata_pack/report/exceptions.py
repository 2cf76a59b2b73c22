"""Applies a policy to a report: excepted checks are marked, and an expired exception is a failed check."""

from __future__ import annotations

from dataclasses import replace

from strata_pack.policy import Policy
from strata_pack.report.model import Check, Report


def apply_exceptions(report: Report, policy: Policy, prefix: str, name: str) -> Report:
    """Return ``report`` (on the pack ``name``) with the exceptions of ``policy`` applied; a check's rule is
    ``prefix/id``."""
    checks = [_excepted(check, policy, f"{prefix}/{check.id}", name) for check in report.checks]
    return replace(report, checks=(*checks, *expired_checks(policy)))


def expired_checks(policy: Policy) -> list[Check]:
    """Return a failed check for every expired exception."""
    title = "every exception still counts"
    return [
        Check(f"policy/{number}", title, "failed", one.expired_note, where=str(policy.path))
        for number, one in enumerate(policy.expired, 1)
    ]


def _excepted(check: Check, policy: Policy, rule: str, name: str) -> Check:
    found = policy.exception(rule, name) if check.status == "failed" else None
    return check if found is None else replace(check, status="skipped", detail=f"{found.note} ({check.detail})")

"""Turns messages into prompts: renders, checks, lints, measures and repairs chat templates."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.chat.engines.engines import Engine as Engine
    from strata_pack.chat.engines.engines import available_engines as available_engines
    from strata_pack.chat.engines.engines import open_engines as open_engines
    from strata_pack.chat.golden.cases import GoldenCase as GoldenCase
    from strata_pack.chat.golden.cases import GoldenSuite as GoldenSuite
    from strata_pack.chat.golden.cases import load_suite as load_suite
    from strata_pack.chat.golden.check import CaseResult as CaseResult
    from strata_pack.chat.golden.check import GoldenReport as GoldenReport
    from strata_pack.chat.golden.check import check_golden as check_golden
    from strata_pack.chat.library import ShippedTemplate as ShippedTemplate
    from strata_pack.chat.library import list_templates as list_templates
    from strata_pack.chat.library import load_shipped as load_shipped
    from strata_pack.chat.library import status_of as status_of
    from strata_pack.chat.lint.model import Finding as Finding
    from strata_pack.chat.lint.model import Rule as Rule
    from strata_pack.chat.lint.rules import lint_template as lint_template
    from strata_pack.chat.normalize import normalize_messages as normalize_messages
    from strata_pack.chat.prefix.measure import check_prefix as check_prefix
    from strata_pack.chat.prefix.report import PrefixReport as PrefixReport
    from strata_pack.chat.prefix.session import bundled_session as bundled_session
    from strata_pack.chat.prefix.session import load_session as load_session
    from strata_pack.chat.render.failures import RequestUnseen as RequestUnseen
    from strata_pack.chat.render.failures import TemplateError as TemplateError
    from strata_pack.chat.render.failures import TemplateLimit as TemplateLimit
    from strata_pack.chat.render.failures import TemplateRefused as TemplateRefused
    from strata_pack.chat.render.template import ChatTemplate as ChatTemplate
    from strata_pack.chat.render.template import read_template as read_template
    from strata_pack.chat.repair.engines import proof_engines as proof_engines
    from strata_pack.chat.repair.repair import RepairRefused as RepairRefused
    from strata_pack.chat.repair.repair import RepairResult as RepairResult
    from strata_pack.chat.repair.repair import repair_template as repair_template

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "chat.engines.engines": (
            "Engine",
            "available_engines",
            "open_engines",
        ),
        "chat.golden.cases": (
            "GoldenCase",
            "GoldenSuite",
            "load_suite",
        ),
        "chat.golden.check": (
            "CaseResult",
            "GoldenReport",
            "check_golden",
        ),
        "chat.library": (
            "ShippedTemplate",
            "list_templates",
            "load_shipped",
            "status_of",
        ),
        "chat.lint.model": (
            "Finding",
            "Rule",
        ),
        "chat.lint.rules": ("lint_template",),
        "chat.normalize": ("normalize_messages",),
        "chat.prefix.measure": ("check_prefix",),
        "chat.prefix.report": ("PrefixReport",),
        "chat.prefix.session": (
            "bundled_session",
            "load_session",
        ),
        "chat.render.failures": (
            "RequestUnseen",
            "TemplateError",
            "TemplateLimit",
            "TemplateRefused",
        ),
        "chat.render.template": (
            "ChatTemplate",
            "read_template",
        ),
        "chat.repair.engines": ("proof_engines",),
        "chat.repair.repair": (
            "RepairRefused",
            "RepairResult",
            "repair_template",
        ),
    },
)

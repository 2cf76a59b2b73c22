"""Builds, opens, verifies and inspects packs (folders that an engine can serve unchanged) and installs templates."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.pack.build import BuildResult as BuildResult
    from strata_pack.pack.build import build_pack as build_pack
    from strata_pack.pack.build import build_packs as build_packs
    from strata_pack.pack.build_plan import plan_build as plan_build
    from strata_pack.pack.inspect import Inspection as Inspection
    from strata_pack.pack.inspect import inspect_path as inspect_path
    from strata_pack.pack.layout import Pack as Pack
    from strata_pack.pack.layout import gguf_template as gguf_template
    from strata_pack.pack.manifest import Manifest as Manifest
    from strata_pack.pack.manifest import read_manifest as read_manifest
    from strata_pack.pack.request import BuildRequest as BuildRequest
    from strata_pack.pack.template.install import GoldenFailed as GoldenFailed
    from strata_pack.pack.template.install import InstallResult as InstallResult
    from strata_pack.pack.template.install import TemplateNotRecognised as TemplateNotRecognised
    from strata_pack.pack.template.install import install_template as install_template
    from strata_pack.pack.template.install import rollback_template as rollback_template
    from strata_pack.pack.template.status import TargetStatus as TargetStatus
    from strata_pack.pack.template.status import template_status as template_status
    from strata_pack.pack.verification import verify as verify

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "pack.build": (
            "BuildResult",
            "build_pack",
            "build_packs",
        ),
        "pack.build_plan": ("plan_build",),
        "pack.inspect": (
            "Inspection",
            "inspect_path",
        ),
        "pack.layout": (
            "Pack",
            "gguf_template",
        ),
        "pack.manifest": (
            "Manifest",
            "read_manifest",
        ),
        "pack.request": ("BuildRequest",),
        "pack.template.install": (
            "GoldenFailed",
            "InstallResult",
            "TemplateNotRecognised",
            "install_template",
            "rollback_template",
        ),
        "pack.template.status": ("TargetStatus", "template_status"),
        "pack.verification": ("verify",),
    },
)

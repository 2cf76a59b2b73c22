"""Resolves the user's arguments (a pack or GGUF, a template) to the ``Target`` of a smoke test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strata_pack.chat.golden.cases import GoldenSuite, load_suite
from strata_pack.chat.library import ShippedTemplate, list_templates, named_template
from strata_pack.chat.render.template import read_template
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_text
from strata_pack.pack.drafting import draft_layers
from strata_pack.pack.layout import Pack, gguf_template
from strata_pack.smoke.context import Target
from strata_pack.weights.gguf.file import GgufFile, shard_paths


def one_of(target: Path | None, url: str | None) -> None:
    """Raise ``WrongUse`` unless exactly one of the two is given."""
    if (target is None) == (url is None):
        raise WrongUse("needs exactly one of TARGET and --url", remedy="see `strata-pack smoke --help`")


def open_target(
    path: Path, template: str | None = None, suite: Path | None = None, source: Path | None = None
) -> Target:
    """Return the target in ``path``: a pack's folder or a ``.gguf`` file (the first shard of several).

    ``template`` is the id of a shipped template or a file, for a GGUF that should be served with it; a pack has its
    own. ``suite`` names golden cases to use instead, ``source`` what the model was made from (a folder with a
    ``config.json``, a GGUF or a pack). Raises ``BadInput`` for any other path, ``WrongUse`` for an unknown id.
    """
    if path.is_dir():
        if template is not None:
            raise BadInput("is a pack, which has its own template", where=path, remedy="leave --template out")
        found = _pack(path, suite)
    elif path.is_file():
        found = _gguf(path, template, suite)
    else:
        raise BadInput("no such pack or GGUF file", where=path)
    assert found.model is not None
    return replace(
        found, recurrent=_is_recurrent(found.model), source=source, draft_layers=draft_layers(found.model)
    )  # fmt: skip


def _gguf(path: Path, template: str | None, suite: Path | None) -> Target:
    files = shard_paths(path)
    own = gguf_template(files[0])
    base = Target(name=path.name, model=files[0], gguf_template=own, files=tuple(files))
    if template is None:
        shipped = next((one for one in list_templates() if own is not None and sha256_text(own) == one.sha256), None)
        name = f"{shipped.id}, in the GGUF" if shipped else "the GGUF's own"
        return replace(base, template=own, template_name=name, suite=_suite(shipped, suite))
    named = named_template(template)
    if isinstance(named, Path):
        cases = load_suite(suite) if suite else None
        return replace(base, template=read_template(named), template_file=named, template_name=named.name, suite=cases)
    return replace(
        base,
        template=named.source,
        template_file=named.path,
        template_name=f"{named.id}, as a file",
        suite=_suite(named, suite),
    )


def _is_recurrent(model: Path) -> bool:
    """Return whether the header has the state size of recurrent layers, as hybrid and Mamba-like models do."""
    with GgufFile.open(model) as gguf:
        return any(".ssm." in key or ".wkv." in key for key in gguf.metadata)


def _suite(shipped: ShippedTemplate | None, suite: Path | None) -> GoldenSuite | None:
    if suite is not None:
        return load_suite(suite)
    return load_suite(shipped.golden_dir) if shipped is not None else None


def _pack(path: Path, suite: Path | None) -> Target:
    pack = Pack.open(path)
    cases = suite or pack.golden_path
    entry = pack.manifest["template"]
    return Target(
        name=path.name,
        model=pack.model_files[0],
        template=read_template(pack.template_path),
        gguf_template=gguf_template(pack.model_files[0]),
        pinned_sha256=entry["sha256"],
        template_name=f"{entry['id'] or entry['origin']}, the pack's",
        suite=load_suite(cases) if cases is not None else None,
        files=tuple(pack.model_files),
        pack=path,
        projector=pack.projector_path,
    )

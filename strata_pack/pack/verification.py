"""Verifies a pack: manifest, sizes, hashes, GGUF structure, equality of all copies of the template, and more.

Every check runs even if another failed, so that one run shows all problems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from time import monotonic

from strata_pack import __version__
from strata_pack.chat.golden.cases import load_suite
from strata_pack.chat.render.template import ChatTemplate, read_template
from strata_pack.errors import BadInput, StrataError
from strata_pack.files import read_json_object, sha256_text
from strata_pack.pack.attestations.files import provenance_problems, sbom_problems
from strata_pack.pack.contents import covered_files, hashed
from strata_pack.pack.facts import wrong_facts
from strata_pack.pack.layout import Pack, gguf_template
from strata_pack.pack.loadable import header_problems, template_problems, tokenizer_problems
from strata_pack.pack.paths import MANIFEST, MODEL_DIR, TEMPLATE, TEMPLATE_KEY, is_pack, member
from strata_pack.pack.projector import ROLE, projector_faults
from strata_pack.progress import Progress, Silent
from strata_pack.report.model import Check, Report, Status
from strata_pack.weights.gguf.file import GgufFile, shard_paths

TOKENIZER_JSON = "tokenizer/tokenizer.json"
TOKENIZER_CONFIG = "tokenizer/tokenizer_config.json"
CHECKS = (
    *("manifest", "files", "sizes", "hashes", "gguf", "tensors", "projector", "facts", "loads", "template", "golden"),
    *("tokenizer", "provenance", "sbom"),
)
"""The ids of the checks, in order."""

SHOWN = 10
"""Maximum number of differences that one check lists."""


FurtherCheck = Callable[[Pack, Mapping[str, str]], Check]
"""A further check, from another package: it gets the pack and the computed SHA-256 of every listed file."""


def verify(path: Path, progress: Progress | None = None, further: Iterable[FurtherCheck] = ()) -> Report:
    """Verify the pack in ``path``; the checks ``further`` run last.

    Raises ``BadInput`` if there is no manifest.
    """
    started = monotonic()
    try:
        pack = Pack.open(path)
    except BadInput as error:
        if not is_pack(path):
            raise
        check = Check("manifest", "the manifest is valid", "failed", str(error))
        return Report(f"verify {path.name}", (check,), {"pack": str(path)}, seconds=monotonic() - started)
    watcher = progress or Silent()
    digests: dict[str, str] = {}
    checks = [
        Check("manifest", "the manifest is valid", "passed"),
        checked("files", "every file is listed and every listed file is there", lambda: _files(pack)),
        checked("sizes", "every file has its size", lambda: _sizes(pack)),
        checked("hashes", "every file has its SHA-256", lambda: _hashes(pack, digests, watcher)),
        checked("gguf", "the GGUF is whole and in order", lambda: _gguf(pack)),
        checked("tensors", "every tensor has the type of the manifest", lambda: _tensors(pack)),
        checked("projector", "the projector is that of the model", lambda: _projector(pack)),
        checked("facts", "the facts in the manifest agree with the files", lambda: _facts(pack)),
        checked("loads", "a loader finds all it needs in the header", lambda: _loads(pack)),
        checked("template", "all copies of the template are the manifest's", lambda: _template(pack)),
        checked("golden", "the golden cases are the manifest's", lambda: _golden(pack)),
        checked("tokenizer", "the tokenizer's files fit the GGUF", lambda: _tokenizer(pack)),
        checked("provenance", "the statement of its origin is the manifest's", lambda: _provenance(pack)),
        checked("sbom", "the bill of materials is the manifest's", lambda: _sbom(pack)),
    ]
    checks += [check(pack, digests) for check in further]
    facts = {
        "pack": str(path),
        "model": pack.manifest["model"]["name"],
        "quant": pack.manifest["recipe"]["preset"],
        "template": pack.manifest["template"]["id"] or pack.manifest["template"]["sha256"][:12],
    }
    return Report(f"verify {pack.path.name}", tuple(checks), facts, seconds=monotonic() - started)


def checked(id: str, title: str, find: Callable[[], list[str]]) -> Check:
    """Return the check ``id``: passed if ``find`` returns no problems, else failed with these problems."""
    started = monotonic()
    status: Status = "passed"
    try:
        wrong = find()
    except (StrataError, OSError) as error:
        wrong = [str(error)]
    if wrong:
        status = "failed"
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    detail = "; ".join(wrong[:SHOWN]) + more
    return replace(Check(id, title, status, detail), seconds=monotonic() - started)


def _files(pack: Pack) -> list[str]:
    listed = [entry["path"] for entry in pack.manifest["files"]]
    there = covered_files(pack.path)
    wrong = [f"{path} is missing" for path in listed if path not in there]
    wrong += [f"{path} is not in the manifest" for path in sorted(there - set(listed))]
    wrong += [f"{path} is a link" for path in sorted(there) if (pack.path / path).is_symlink()]
    wrong += [f"{path} is listed twice" for path in sorted({path for path in listed if listed.count(path) > 1})]
    if (pack.path / MANIFEST).is_symlink():
        wrong.append(f"{MANIFEST} is a link")
    return wrong + [
        f"{path} is not in the list of files" for path in pack.manifest["model"]["files"] if path not in listed
    ]


def _sizes(pack: Pack) -> list[str]:
    wrong = []
    for entry in pack.manifest["files"]:
        path = member(pack.path, entry["path"])
        if path.is_file() and (size := path.stat().st_size) != entry["size"]:
            wrong.append(f"{entry['path']} has {size} bytes instead of {entry['size']}")
    return wrong


def _hashes(pack: Pack, digests: dict[str, str], progress: Progress) -> list[str]:
    """Return which files have other hashes than the manifest's, and store the hash of every file in ``digests``."""
    wrong = []
    for entry in pack.manifest["files"]:
        path = member(pack.path, entry["path"])
        if not path.is_file():
            continue
        digests[entry["path"]] = hashed(path, entry["path"], progress)
        if digests[entry["path"]] != entry["sha256"]:
            wrong.append(f"{entry['path']} has other bytes than the manifest says")
    return wrong


def _gguf(pack: Pack) -> list[str]:
    files = pack.model_files
    wrong = []
    if shard_paths(files[0]) != files:
        wrong.append(f"the manifest names {len(files)} model files, which does not match the names of the shards")
    known = [*files, pack.projector_path]
    unlisted = sorted(path.name for path in (pack.path / MODEL_DIR).glob("*.gguf") if path not in known)
    wrong += [f"{name} is a GGUF that the manifest does not name" for name in unlisted]
    for path in files:
        with GgufFile.open(path) as gguf:
            end = gguf.data_offset + max((tensor.offset + tensor.nbytes for tensor in gguf.tensors), default=0)
            if end + gguf.alignment <= gguf.file_size:
                wrong.append(f"{path.name} has {gguf.file_size - end} bytes after its last tensor")
    return wrong


def _tensors(pack: Pack) -> list[str]:
    listed = dict(pack.manifest["model"]["tensors"])
    wrong = []
    elements = 0
    with ExitStack() as stack:
        for path in pack.model_files:
            for tensor in stack.enter_context(GgufFile.open(path)).tensors:
                elements += prod(tensor.shape)
                said = listed.pop(tensor.name, None)
                if said != tensor.type.name:
                    wrong.append(f"{tensor.name} is {tensor.type.name} and the manifest says {said or 'nothing of it'}")
    wrong += [f"{name} is missing" for name in listed]
    if elements != pack.manifest["model"]["parameters"]:
        wrong.append(f"there are {elements} weights and the manifest says {pack.manifest['model']['parameters']}")
    return wrong


def _projector(pack: Pack) -> list[str]:
    entry, path = pack.manifest.get("projector"), pack.projector_path
    roles = [file["path"] for file in pack.manifest["files"] if file.get("role") == ROLE]
    if entry is None or path is None:
        return [f"{name} has the role of a projector and the manifest names none" for name in roles]
    wrong = [] if roles == [entry["file"]] else [f"the projector is {entry['file']} and the role is of {roles}"]
    return wrong + projector_faults(pack.model_files[0], path, entry)


def _facts(pack: Pack) -> list[str]:
    with ExitStack() as stack:
        files = [stack.enter_context(GgufFile.open(path)) for path in pack.model_files]
        return wrong_facts(pack.manifest, files, __version__)


def _loads(pack: Pack) -> list[str]:
    with ExitStack() as stack:
        files = [stack.enter_context(GgufFile.open(path)) for path in pack.model_files]
        tensors = [tensor for file in files for tensor in file.tensors]
        tokenizer = member(pack.path, TOKENIZER_JSON)
        return [
            *header_problems(files[0].metadata, tensors),
            *template_problems(files[0].metadata, files[0].text(TEMPLATE_KEY) or ""),
            *(tokenizer_problems(files[0].metadata, tokenizer) if tokenizer.is_file() else ()),
        ]


def _template(pack: Pack) -> list[str]:
    said = pack.manifest["template"]["sha256"]
    copies = {
        TEMPLATE: read_template(pack.template_path),
        "the GGUF's tokenizer.chat_template": gguf_template(pack.model_files[0]),
    }
    config = member(pack.path, TOKENIZER_CONFIG)
    if config.is_file():
        try:
            inline = read_json_object(config).get("chat_template")
        except BadInput:
            return [f"{TOKENIZER_CONFIG} is not a JSON object"]
        if inline is not None:
            copies[f"chat_template in {TOKENIZER_CONFIG}"] = inline if isinstance(inline, str) else json.dumps(inline)
    wrong = []
    for name, text in copies.items():
        if text is None:
            wrong.append(f"{name} is missing")
        elif sha256_text(text) != said:
            wrong.append(f"{name} is another template ({sha256_text(text)[:12]}) than the manifest's ({said[:12]})")
    ChatTemplate(copies[TEMPLATE] or "")
    return wrong


def _golden(pack: Pack) -> list[str]:
    entry, path = pack.manifest["golden"], pack.golden_path
    if entry is None or path is None:
        return []
    suite = load_suite(path)
    wrong = [] if suite.sha256 == entry["sha256"] else ["the golden cases are not those the pack was checked against"]
    if len(suite.cases) != entry["cases"]:
        wrong.append(f"there are {len(suite.cases)} golden cases and the manifest says {entry['cases']}")
    return wrong


def _provenance(pack: Pack) -> list[str]:
    return provenance_problems(pack.path, pack.manifest)


def _sbom(pack: Pack) -> list[str]:
    return sbom_problems(pack.path, pack.manifest)


def _tokenizer(pack: Pack) -> list[str]:
    from strata_pack.weights.tokenizer.files import tokenizer_files

    with GgufFile.open(pack.model_files[0]) as gguf:
        made = tokenizer_files(gguf.metadata)
    wrong = []
    for name, data in made.items():
        path = member(pack.path, f"tokenizer/{name}")
        if not path.is_file():
            wrong.append(f"tokenizer/{name} is missing")
        elif path.read_bytes() != data:
            wrong.append(f"tokenizer/{name} is not that of the GGUF")
    return wrong

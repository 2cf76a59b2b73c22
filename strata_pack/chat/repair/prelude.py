"""Defines the Jinja prelude of a repaired template (the history repair), and recognises preludes."""

from __future__ import annotations

from functools import cache
from importlib import resources

from strata_pack.chat.repair.rules import CallForm
from strata_pack.files import sha256_text

_BODY_LITERAL: dict[CallForm, str] = {"xml": "'<' ~ 'function='", "json": "'{'"}
_FORM_TITLE: dict[CallForm, str] = {"xml": "XML", "json": "JSON"}

FORMS: tuple[CallForm, ...] = ("xml", "json")

EARLIER = {
    5492: "d8f799248a18f12f9a8a1b947f7f134b075a3961ed5c93b8dcaba7719e718371",
    5479: "4cbda07ccfde92237b401b1e318fe74dd7550d338734be6f71f6b569d647d13b",
    5295: "19313693beff1317f2e4408b93bdd39ac5b481cab51a5e35e0bb93937058b473",
    5282: "9eab5db8c2e1c95d4230522dbe97a98377307546edcc40f493f02db13069794d",
}
"""Length in characters and SHA-256 of the preludes of earlier versions."""


@cache
def prelude(form: CallForm) -> str:
    """Return the Jinja code to prepend to a template whose calls have the format ``form``. It ends with a line feed,
    which engines drop (``trim_blocks``)."""
    text = resources.files("strata_pack.chat.repair").joinpath("prelude.jinja").read_text(encoding="utf-8")
    return text.replace("@FORM@", _FORM_TITLE[form]).replace("@BODY@", _BODY_LITERAL[form])


def without_prelude(text: str) -> str | None:
    """Return the template without its history repair (of this or an earlier version); ``None`` if it has none."""
    for form in FORMS:
        if text.startswith(prelude(form)):
            return text[len(prelude(form)) :]
    for length, digest in EARLIER.items():
        if len(text) >= length and sha256_text(text[:length]) == digest:
            return text[length:]
    return None

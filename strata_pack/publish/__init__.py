"""Publish finished packs with a model card, provenance statement, bill of materials and signature."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.publish.card import Figures as Figures
    from strata_pack.publish.card_reading import card_check as card_check
    from strata_pack.publish.exports import Exported as Exported
    from strata_pack.publish.exports import ExportOptions as ExportOptions
    from strata_pack.publish.exports import export as export
    from strata_pack.publish.exports import exported_file as exported_file
    from strata_pack.publish.exports import find_program as find_program
    from strata_pack.publish.items import FileChange as FileChange
    from strata_pack.publish.keys import KeyPair as KeyPair
    from strata_pack.publish.keys import make_keys as make_keys
    from strata_pack.publish.keys import read_private_key as read_private_key
    from strata_pack.publish.publishing import LicenceQuestion as LicenceQuestion
    from strata_pack.publish.publishing import Published as Published
    from strata_pack.publish.publishing import PublishOptions as PublishOptions
    from strata_pack.publish.publishing import publish as publish
    from strata_pack.publish.signing import Signed as Signed
    from strata_pack.publish.signing import is_signed as is_signed
    from strata_pack.publish.signing import sign_pack as sign_pack
    from strata_pack.publish.signing import signature_check as signature_check
    from strata_pack.publish.update import update_templates as update_templates

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "publish.card": ("Figures",),
        "publish.card_reading": ("card_check",),
        "publish.exports": ("ExportOptions", "Exported", "export", "exported_file", "find_program"),
        "publish.items": ("FileChange",),
        "publish.keys": ("KeyPair", "make_keys", "read_private_key"),
        "publish.publishing": ("LicenceQuestion", "PublishOptions", "Published", "publish"),
        "publish.signing": ("Signed", "is_signed", "sign_pack", "signature_check"),
        "publish.update": ("update_templates",),
    },
)

"""Exports a package's public names lazily: a name's module is imported at the first use of the name.

An ``__init__.py`` passes the table of its names to ``door`` (PEP 562) and repeats them under ``if TYPE_CHECKING``
for type checkers and editors; a test keeps the two equal. This module imports nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def door(
    package: str, modules: "Mapping[str, tuple[str, ...]]"
) -> "tuple[Callable[[str], object], Callable[[], list[str]], list[str]]":
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of ``package``.

    ``modules`` are the public names by the module that defines them, spelled from ``strata_pack`` on
    (``"chat.golden.check"``).
    """
    homes = {name: f"strata_pack.{module}" for module, names in modules.items() for name in names}
    names = sorted(homes)

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(__import__(homes[name], fromlist=[name]), name)

    return get, lambda: names, names

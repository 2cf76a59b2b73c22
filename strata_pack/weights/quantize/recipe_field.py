"""Defines a dataclass field that accepts a recipe or a preset's name and stores a recipe."""

from __future__ import annotations

from typing import Any

from strata_pack.weights.quantize.presets import find_preset
from strata_pack.weights.quantize.recipes import Recipe

DEFAULT = "Q4_K_M"


class RecipeField:
    """The descriptor of a request's ``recipe``: "Q4_K_M" becomes the recipe of that preset.

    ``WrongUse`` for an unknown preset. The default is the preset Q4_K_M.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Recipe:
        if instance is None:
            return Recipe(find_preset(DEFAULT))
        recipe: Recipe = instance.__dict__[self._name]
        return recipe

    def __set__(self, instance: Any, value: Recipe | str) -> None:
        instance.__dict__[self._name] = Recipe(find_preset(value)) if isinstance(value, str) else value

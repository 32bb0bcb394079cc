"""Remembers by which named function a value was made, so that it can be written down.

    optimizer = OPTIMIZERS["sgd"](0.1)
    recipe_of(optimizer)    # Recipe("optimizer", "sgd", {"learning_rate": 0.1, "momentum": 0.0})

A value that was made in another way, or changed since, has no recipe.
"""

import functools
import inspect
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Recipe(NamedTuple):
    """A call of a named function.

    Attributes:
        kind: The kind of the function, such as "optimizer".
        name: The name of the function.
        arguments: All its arguments by name.
        module: The module of the function.
    """

    kind: str
    name: str
    arguments: Mapping[str, Any]
    module: str


_RECIPES: dict[int, Recipe] = {}  # by the ids of values that live


def recipe_of(value: Any) -> Recipe | None:
    """Returns the recipe of a value, or `None` if it has none."""
    return _RECIPES.get(id(value))


def remember(value: Any, recipe: Recipe) -> None:
    """Keeps the recipe of a value as long as the value lives.

    Values without weak references, such as tuples and numbers, get no recipe.
    """
    try:
        forget = weakref.finalize(value, _RECIPES.pop, id(value), None)
    except TypeError:
        return
    forget.atexit = False
    _RECIPES[id(value)] = recipe


def remembering(kind: str, name: str) -> Callable[[_Function], _Function]:
    """Decorates a function, so that what it returns has a recipe, unless it is an argument."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if all(made is not it for it in bound.arguments.values()):
                remember(made, Recipe(kind, name, bound.arguments, function.__module__))
            return made

        return typing.cast(_Function, call)

    return decorate

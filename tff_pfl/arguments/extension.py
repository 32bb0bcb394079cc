"""A decorator for functions that add options to another function."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from tff_pfl.arguments.kinds import signature_of
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import ranges_of

_Extended = TypeVar("_Extended", bound=Callable[..., Any])


def extends(base: Callable, without: Collection[str] = ()) -> Callable[[_Extended], _Extended]:
    """Decorates a function whose `**options` are the keyword arguments of another function.

    The signature then shows all keyword arguments: the function's own, and the remaining ones of
    `base`. The ranges of numbers are inherited, too. Configs read hyper-parameters from this
    signature. For an unknown argument, the function raises a `TypeError` that names the nearest
    known one.

    Example:
        >>> def base(model, *, epochs=5):
        ...     return epochs
        >>> @tff_pfl.extends(base)
        ... def method(model, *, rho=0.05, **options):
        ...     return rho, base(model, **options)
        >>> method.__signature__, method(None, epochs=7)
        (<Signature (model, *, rho=0.05, epochs=5)>, (0.05, 7))

    Args:
        base: The function that takes `**options`.
        without: Names of keyword arguments of `base` that are not options.
    """
    base_parameters = [p for p in signature_of(base).parameters.values() if p.name not in without]
    inherited = [p for p in base_parameters if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]

    def decorate(function):
        own = [p for p in signature_of(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in own}
        parameters = own + [p for p in inherited if p.name not in names]
        takes_others = any(p.kind is p.VAR_KEYWORD for p in inherited)
        known = list(dict.fromkeys(p.name for p in [*parameters, *base_parameters]))

        @functools.wraps(function)
        def extended(*args, **kwargs):
            checked = kwargs.keys() & set(without) if takes_others else kwargs
            check_names(f"option of {function.__name__}", checked, known, error=TypeError)
            return function(*args, **kwargs)

        extended.__signature__ = inspect.Signature(parameters)
        ranges = {**ranges_of(base), **ranges_of(function)}
        extended.__ranges__ = {p.name: ranges[p.name] for p in parameters if p.name in ranges}
        return extended

    return decorate

"""Functions that add to another one."""

import functools
import inspect
from collections.abc import Callable, Iterable

from tff_pfl.names import check_names
from tff_pfl.ranges import ranges_of


def extends(base: Callable, without: Iterable[str] = ()) -> Callable[[Callable], Callable]:
    """Decorates a function whose `**options` are the keyword arguments of another function.

    The signature, from which configs learn the hyper-parameters, then shows all of them: the
    function's own, and those of `base` that it does not have; and so do the ranges of numbers.

        @extends(fedavg)
        def fedsam(model, local, *, rho=0.05, **options):
            return fedavg(model, local, ..., **options)

    Args:
        base: The function that takes `**options`.
        without: Names of those of its keyword arguments that are not to be options.

    The function raises a `TypeError` for an argument that is none of them, with the nearest one.
    """
    without = frozenset(without)
    parameters = inspect.signature(base).parameters.values()
    inherited = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in without]

    def decorate(function):
        own = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        names = {p.name for p in own}
        parameters = own + [p for p in inherited if p.name not in names]
        names = [p.name for p in parameters]

        @functools.wraps(function)
        def extended(*args, **kwargs):
            check_names(f"option of {function.__name__}", kwargs, names, error=TypeError)
            return function(*args, **kwargs)

        extended.__signature__ = inspect.Signature(parameters)
        ranges = {**ranges_of(base), **ranges_of(function)}
        extended.__ranges__ = {p.name: ranges[p.name] for p in parameters if p.name in ranges}
        return extended

    return decorate

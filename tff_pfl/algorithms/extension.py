"""Builders that add to another one."""

import functools
import inspect
from collections.abc import Callable, Iterable

from tff_pfl.ranges import ranges_of


def extends(base: Callable, without: Iterable[str] = ()) -> Callable[[Callable], Callable]:
    """Decorates a builder whose `**options` are the keyword arguments of another builder.

    The signature, from which configs learn the hyper-parameters, then shows all of them: the
    builder's own, and those of `base` that it does not have; and so do the ranges of numbers.

        @extends(build_fedavg)
        def build_fedsam(model, examples_type, local, *, rho=0.05, **options):
            return build_fedavg(model, examples_type, local, ..., **options)

    Args:
        base: The builder that takes `**options`.
        without: Names of those of its keyword arguments that are not to be options.
    """
    without = frozenset(without)
    parameters = inspect.signature(base).parameters.values()
    inherited = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in without]

    def decorate(builder):
        own = [
            p for p in inspect.signature(builder).parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        names = {p.name for p in own}
        parameters = own + [p for p in inherited if p.name not in names]

        @functools.wraps(builder)
        def build(*args, **kwargs):
            if unknown := without & kwargs.keys():
                raise TypeError(f"{builder.__name__} has no option {', '.join(sorted(unknown))}.")
            return builder(*args, **kwargs)

        build.__signature__ = inspect.Signature(parameters)
        ranges = {**ranges_of(base), **ranges_of(builder)}
        build.__ranges__ = {p.name: ranges[p.name] for p in parameters if p.name in ranges}
        return build

    return decorate

"""Errors of the templates: each names the block and the types, and says what to do."""

from collections.abc import Iterator

import tensorflow_federated as tff

from tff_pfl.tracing.errors import TemplateError


class ProcessSignatureError(TemplateError):
    """A computation of a process does not have the required type signature."""


class BlockResultError(TemplateError):
    """A block returned a value of another type or form than its documentation states."""


class AggregatorError(TemplateError):
    """The aggregator is not a `tff.aggregators` factory, or does not fit the uploads."""


class StatisticsError(TemplateError):
    """Client work makes steps, but leaves the moving statistics of batch normalisation alone."""


def check_same_type(
    requirement: str, expected: tff.types.Type, found: tff.types.Type, tip: str
) -> None:
    """Checks that the type `found` can be used as the type `expected`.

    Raises:
        BlockResultError: `found` does not fit. The message has both types, their first difference
            and the tip.
    """
    if expected.is_assignable_from(found):
        return
    first = ""
    if isinstance(expected, tff.types.StructType):
        first = f"\n  first:    {_first_difference(expected, found)}"
    raise BlockResultError(
        f"{requirement}.\n  expected: {expected}\n  found:    {found}{first}\nTip: {tip}"
    )


def _first_difference(expected: tff.types.Type, found: tff.types.Type) -> str:
    """Describes the first path at which two types differ; elements without a name have indices."""
    present, others = dict(_leaves(expected)), dict(_leaves(found))
    for path in [*present, *others]:
        if present.get(path) != others.get(path):
            return f"{path!r} is {others.get(path, 'missing')}, not {present.get(path, 'there')}"
    return f"the order is {', '.join(others)}, not {', '.join(present)}"


def _leaves(type_: tff.types.Type, path: str = "") -> Iterator[tuple[str, tff.types.Type]]:
    if not isinstance(type_, tff.types.StructType):
        yield path, type_
        return
    for index, (name, inner) in enumerate(tff.structure.iter_elements(type_)):
        yield from _leaves(inner, f"{path}/{name or index}".lstrip("/"))

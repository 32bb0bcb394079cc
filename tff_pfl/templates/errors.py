"""Named errors of the grammar: each says which block, which types, and what to do."""

from collections.abc import Iterator

import tensorflow_federated as tff


class TemplateError(TypeError):
    """A block of a personalized process does not fit; the base of this module's errors."""


class ProcessSignatureError(TemplateError):
    """A computation of a process does not have the type signature that is asked for."""


class BlockTracingError(TemplateError):
    """A block failed while it was traced with the types that the composer found for it."""


class BlockResultError(TemplateError):
    """A block returned a value of another type, or of another form, than its docs state."""


class AggregatorError(TemplateError):
    """The aggregator is not a `tff.aggregators` factory, or refuses the type of the uploads."""


class RandomnessError(TemplateError):
    """A block draws random numbers that no seed controls, so that no two runs are the same."""


def check_same_type(what: str, expected: tff.types.Type, found: tff.types.Type, tip: str) -> None:
    """Checks that a value of the type `found` can be used where `expected` is.

    Raises:
        BlockResultError: If it cannot; with both types, where they differ first, and the tip.
    """
    if expected.is_assignable_from(found):
        return
    first = ""
    if isinstance(expected, tff.types.StructType):
        first = f"\n  first:    {_first_difference(expected, found)}"
    raise BlockResultError(
        f"{what}.\n  expected: {expected}\n  found:    {found}{first}\nTip: {tip}"
    )


def _first_difference(expected: tff.types.Type, found: tff.types.Type) -> str:
    """Says at which path two types differ first; paths are of names, and of indices without one."""
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

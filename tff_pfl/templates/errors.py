"""Named errors of the grammar: each says which block, which types, and what to do."""

from collections.abc import Iterator, Mapping

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

    Python's containers count, which TFF leaves out of that: `tf.nest` does not mix them. Where the
    types have elements, the message has the path of the first one that differs.

    Raises:
        BlockResultError: If it cannot; with both types and the tip.
    """
    if not expected.is_assignable_from(found):
        has_elements = isinstance(expected, tff.types.StructType)
        first = f"\n  first:    {next(_differences(expected, found))}" if has_elements else ""
        raise BlockResultError(
            f"{what}.\n  expected: {expected}\n  found:    {found}{first}\nTip: {tip}"
        )
    for path, container, other in _other_containers(expected, found):
        raise BlockResultError(
            f"{what}{f', in {path!r}' if path else ''}.\n  expected: {container.__name__} of type "
            f"{expected}\n  found:    {other.__name__}\nTip: return it in the same container."
        )


def _differences(expected: tff.types.Type, found: tff.types.Type, path: str = "") -> Iterator[str]:
    """Yields where `found` differs from `expected`, as deep inside as it can be said."""
    if expected.is_assignable_from(found):
        return
    what = repr(path) if path else "all of it"
    if not all(isinstance(type_, tff.types.StructType) for type_ in (expected, found)):
        yield f"{what} is {found}, not {expected}"
        return
    names, others = _names(expected), _names(found)
    if names == others:
        for name, inner, other in zip(names, expected, found, strict=True):
            yield from _differences(inner, other, f"{path}/{name}".lstrip("/"))
    elif sorted(names) == sorted(others):
        yield f"{what} has the order {', '.join(others)}, not {', '.join(names)}"
    else:
        yield f"{what} has {', '.join(others) or 'nothing'}, not {', '.join(names) or 'nothing'}"


def _names(struct: tff.types.StructType) -> list[str]:
    """Returns the name of each element, or its index in brackets if it has no name."""
    elements = enumerate(tff.structure.iter_elements(struct))
    return [name or f"[{index}]" for index, (name, _) in elements]


def _other_containers(
    expected: tff.types.Type, found: tff.types.Type, path: str = ""
) -> Iterator[tuple[str, type, type]]:
    """Yields `(path, container, other container)` where two types differ in containers alone."""
    if not isinstance(expected, tff.types.StructType):
        return
    containers = [getattr(type_, "python_container", None) for type_ in (expected, found)]
    if None not in containers and not (
        containers[0] is containers[1] or all(issubclass(c, Mapping) for c in containers)
    ):
        yield path, *containers
    for name, inner, other in zip(_names(expected), expected, found, strict=True):
        yield from _other_containers(inner, other, f"{path}/{name}".lstrip("/"))

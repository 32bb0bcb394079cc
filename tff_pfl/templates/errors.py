"""Named errors of the grammar: each says which block, which types, and what to do."""

import tensorflow_federated as tff


class TemplateError(TypeError):
    """A block of a personalized process does not fit; the base of this module's errors."""


class ProcessSignatureError(TemplateError):
    """A computation of a `PersonalizedProcess` has not the type signature of section "types"."""


class BlockTracingError(TemplateError):
    """A block failed while it was traced with the types that the composer found for it."""


class ClientOutputError(TemplateError):
    """Client work did not return a `ClientOutput` with a weight and metrics of the right form."""


class ClientStateTypeError(TemplateError):
    """Client work returned a client state of another type than `client_init` does."""


class ServerStateTypeError(TemplateError):
    """`finalize` returned a server state of another type than `server_init` does."""


class ServerMetricsError(TemplateError):
    """`finalize` returned metrics that are no mapping from names to numbers."""


class AggregatorError(TemplateError):
    """The aggregator is not a `tff.aggregators` factory, or refuses the type of the uploads."""


class RandomnessError(TemplateError):
    """A block draws random numbers that no seed controls, so that no two runs are the same."""


class MessageShapeError(TemplateError):
    """A message has a shape that is not fully known, so that its bytes cannot be stated."""


def check_same_type(
    error: type[TemplateError], what: str, expected: tff.types.Type, found: tff.types.Type, tip: str
) -> None:
    """Raises `error` with both types and a tip unless `found` can be assigned to `expected`."""
    if not expected.is_assignable_from(found):
        raise error(f"{what}.\n  expected: {expected}\n  found:    {found}\nTip: {tip}")

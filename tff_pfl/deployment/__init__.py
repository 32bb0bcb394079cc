"""TFF's own drivers and data: what lets them take a personalized process."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "examples_source": ("ExamplesDataSource", "ExamplesIterator"),
        "global_model": ("compose_global_evaluation",),
        "program_state": ("CheckedStateManager",),
        "sequence_data": ("compose_with_sequence_data",),
        "stateless_view": ("compose_stateless_view",),
    },
)

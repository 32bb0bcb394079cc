"""What lives with a client between rounds: its state, its data, and the cohort of a round."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "cohort": (
            "CohortDataSource",
            "CohortIterator",
            "UnknownCohortSourceError",
            "pad_examples",
            "shared_capacity",
        ),
        "errors": ("CorruptStateError", "ForeignStateError", "StateStoreError"),
        "examples_source": ("ExamplesDataSource", "ExamplesIterator"),
        "participation": (
            "AVAILABILITIES",
            "SAMPLINGS",
            "Cohort",
            "Participation",
            "sample_cohort",
        ),
        "serialization": ("deserialize", "serialize"),
        "state_store": ("ClientStateStore",),
    },
)

"""The states of clients, their data, and the cohorts of rounds."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "availability": ("AVAILABILITIES", "Availability", "Devices"),
        "cohort": ("CohortDataSource", "CohortIterator", "UnknownCohortSourceError"),
        "errors": ("CorruptStateError", "ForeignStateError", "StateStoreError"),
        "padding": ("Ladder", "pad_examples"),
        "participation": ("EVERYBODY_REPORTS", "Participants", "Participation"),
        "selectors": (
            "SELECTORS",
            "BySize",
            "History",
            "KnownClients",
            "PowerOfChoice",
            "Selector",
            "Uniform",
        ),
        "serialization": ("deserialize", "serialize"),
        "state_store": ("ClientStateStore",),
    },
)

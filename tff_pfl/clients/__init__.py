"""What lives with a client between rounds: its state, its data, and the cohort of a round."""

from tff_pfl.clients.cohort import (
    CohortDataSource,
    CohortIterator,
    UnknownCohortSourceError,
    pad_examples,
    shared_capacity,
)
from tff_pfl.clients.disk import StateStoreError
from tff_pfl.clients.examples_source import ExamplesDataSource, ExamplesIterator
from tff_pfl.clients.participation import (
    AVAILABILITIES,
    SAMPLINGS,
    Cohort,
    Participation,
    sample_cohort,
)
from tff_pfl.clients.serialization import (
    CorruptStateError,
    ForeignStateError,
    deserialize,
    serialize,
)
from tff_pfl.clients.state_store import ClientStateStore

__all__ = [
    "AVAILABILITIES",
    "ClientStateStore",
    "Cohort",
    "CohortDataSource",
    "CohortIterator",
    "CorruptStateError",
    "ExamplesDataSource",
    "ExamplesIterator",
    "ForeignStateError",
    "Participation",
    "SAMPLINGS",
    "StateStoreError",
    "UnknownCohortSourceError",
    "deserialize",
    "pad_examples",
    "sample_cohort",
    "shared_capacity",
    "serialize",
]

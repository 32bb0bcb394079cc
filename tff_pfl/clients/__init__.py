"""What lives with a client between rounds: its state, its data, and the cohort of a round."""

from tff_pfl.clients.availability import AVAILABILITIES, Availability, Devices
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
    EVERYBODY_REPORTS,
    SAMPLINGS,
    Participants,
    Participation,
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
    "Availability",
    "ClientStateStore",
    "CohortDataSource",
    "CohortIterator",
    "CorruptStateError",
    "Devices",
    "EVERYBODY_REPORTS",
    "ExamplesDataSource",
    "ExamplesIterator",
    "ForeignStateError",
    "Participants",
    "Participation",
    "SAMPLINGS",
    "StateStoreError",
    "UnknownCohortSourceError",
    "deserialize",
    "pad_examples",
    "shared_capacity",
    "serialize",
]

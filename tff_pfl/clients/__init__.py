"""The states of clients, their data, and the cohorts of rounds."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.clients.availability import AVAILABILITIES as AVAILABILITIES
    from tff_pfl.clients.availability import Availability as Availability
    from tff_pfl.clients.availability import Devices as Devices
    from tff_pfl.clients.cohort import CohortDataSource as CohortDataSource
    from tff_pfl.clients.cohort import CohortIterator as CohortIterator
    from tff_pfl.clients.cohort import UnknownCohortSourceError as UnknownCohortSourceError
    from tff_pfl.clients.errors import CorruptStateError as CorruptStateError
    from tff_pfl.clients.errors import ForeignStateError as ForeignStateError
    from tff_pfl.clients.errors import StateStoreError as StateStoreError
    from tff_pfl.clients.padding import Ladder as Ladder
    from tff_pfl.clients.padding import pad_examples as pad_examples
    from tff_pfl.clients.participation import EVERYBODY_REPORTS as EVERYBODY_REPORTS
    from tff_pfl.clients.participation import Participants as Participants
    from tff_pfl.clients.participation import Participation as Participation
    from tff_pfl.clients.selectors import SELECTORS as SELECTORS
    from tff_pfl.clients.selectors import BySize as BySize
    from tff_pfl.clients.selectors import History as History
    from tff_pfl.clients.selectors import KnownClients as KnownClients
    from tff_pfl.clients.selectors import PowerOfChoice as PowerOfChoice
    from tff_pfl.clients.selectors import Selector as Selector
    from tff_pfl.clients.selectors import Uniform as Uniform
    from tff_pfl.clients.serialization import deserialize as deserialize
    from tff_pfl.clients.serialization import serialize as serialize
    from tff_pfl.clients.state_store import ClientStateStore as ClientStateStore
else:
    __getattr__, __dir__, __all__ = offer(__name__)

"""The grammar: an algorithm is blocks, composed into a `PersonalizedProcess`."""

from tff_pfl.templates.composer import compose_personalized_process
from tff_pfl.templates.exchange import (
    ClientContext,
    ClientOutput,
    Exchange,
    Message,
    Personalization,
    aggregation_weight,
    exchanges_changed_by,
    last_own_model,
)
from tff_pfl.templates.process import Client, PersonalizedProcess, ProcessOutput, ServerState
from tff_pfl.templates.sequence_data import compose_with_sequence_data

__all__ = [
    "Client",
    "ClientContext",
    "ClientOutput",
    "Exchange",
    "Message",
    "PersonalizedProcess",
    "Personalization",
    "ProcessOutput",
    "ServerState",
    "aggregation_weight",
    "compose_personalized_process",
    "compose_with_sequence_data",
    "exchanges_changed_by",
    "last_own_model",
]

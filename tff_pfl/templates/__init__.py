"""Algorithms as values made of blocks, and `compose`, which makes a process of an algorithm."""

from tff_pfl.templates.aggregators import AGGREGATORS, with_aggregator
from tff_pfl.templates.algorithm import Algorithm, Ingredients, no_client_state, no_server_state
from tff_pfl.templates.averaging import SharedPart, Weighting, averaging, moved, weighing
from tff_pfl.templates.composer import compose
from tff_pfl.templates.exchange import (
    Aggregator,
    ClientOutput,
    Exchange,
    Message,
    NewClientModel,
    OwnModel,
    Personalization,
    last_own_model,
)
from tff_pfl.templates.federation import Federation
from tff_pfl.templates.process import PersonalizedProcess
from tff_pfl.templates.values import Client, ProcessOutput, ServerState

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Algorithm",
    "Client",
    "ClientOutput",
    "Exchange",
    "Federation",
    "Ingredients",
    "Message",
    "NewClientModel",
    "OwnModel",
    "PersonalizedProcess",
    "Personalization",
    "ProcessOutput",
    "ServerState",
    "SharedPart",
    "Weighting",
    "averaging",
    "compose",
    "last_own_model",
    "moved",
    "no_client_state",
    "no_server_state",
    "weighing",
    "with_aggregator",
]

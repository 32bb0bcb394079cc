"""The process of an algorithm."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.kinds import check_kind
from tff_pfl.models import Model
from tff_pfl.templates.algorithm import Algorithm, evaluated_model
from tff_pfl.templates.blocks import ClientBlock
from tff_pfl.templates.composed_exchange import ComposedExchange


@dataclasses.dataclass(eq=False, kw_only=True)
class PersonalizedProcess(tff.templates.IterativeProcess):
    """A federated algorithm with a model for every client.

    The types are `S`, the server's state; `C`, a client's state; `D`, its examples; `W`, a model's
    weights; `M`, the metrics; and `V`, a mapping of tensors:

        initialize        : ( -> S@SERVER)
        next              : (<S@SERVER, {<client_id=int32, state=C, data=D>}@CLIENTS>
                             -> <state=S@SERVER, clients={C}@CLIENTS, metrics=M@SERVER>)
        initialize_client : (int32 -> C), and for a cohort
        initialize_clients: ({int32}@CLIENTS -> {C}@CLIENTS)
        personalize       : (<S@SERVER, {<client_id=int32, state=C, data=D>}@CLIENTS>
                             -> {W}@CLIENTS)
        further_models    : mapping of names to computations of the type of `personalize`
        global_weights    : (S -> W), or None
        snapshot          : (S -> V), or None
        client_snapshot   : ({C}@CLIENTS -> {V}@CLIENTS), or None

    `C` is an empty structure if clients keep nothing. `compose` makes a process, and
    `dataclasses.replace` makes another process with some parts replaced.

    Attributes:
        initialize_fn: `initialize`.
        next_fn: `next`.
        initialize_client: Makes the state of a client that was never seen, from its id.
        personalize: Makes the weights to evaluate as each client's own model.
        further_models: By name, computations that make models to evaluate besides each client's
            own; see `compose`.
        global_weights: Returns the global model; `None` for an algorithm without one.
        snapshot: Returns the parts of the server's state to look at, or `None`.
        client_snapshot: Returns the parts of clients' states to look at, or `None`.
        algorithm: The algorithm of which the process was made, with its `report` decided.
        exchanges: The exchanges of a round, with their traced blocks.
        personalization: The block of `personalize`, traced.
        gather: `(D -> Examples)` if a client's data are no `Examples`, else `None`.
    """

    initialize_fn: tff.Computation
    next_fn: tff.Computation
    initialize_client: tff.Computation
    personalize: tff.Computation
    algorithm: Algorithm
    exchanges: Sequence[ComposedExchange]
    personalization: ClientBlock
    gather: tff.Computation | None = None
    further_models: Mapping[str, tff.Computation] = dataclasses.field(default_factory=dict)
    global_weights: tff.Computation | None = None
    snapshot: tff.Computation | None = None
    client_snapshot: tff.Computation | None = None

    def __post_init__(self):
        """Sets up the base class."""
        super().__init__(self.initialize_fn, self.next_fn, next_is_multi_arg=True)

    @property
    def client_type(self) -> tff.types.StructType:
        """The type `<client_id=int32, state=C, data=D>` of a client that `next` takes."""
        return self.next.type_signature.parameter[1].member

    @property
    def client_state_type(self) -> tff.types.Type:
        """The type `C` of a client's state between rounds."""
        return self.client_type.state

    @property
    def evaluated_model(self) -> Model:
        """The model of the weights that `personalize` makes."""
        return evaluated_model(self.algorithm)

    @property
    def global_model(self) -> Model:
        """The model of the weights that `global_weights` makes."""
        return evaluated_model(self.algorithm, "global")

    @functools.cached_property
    def initialize_clients(self) -> tff.Computation:
        """A computation `({int32}@CLIENTS -> {C}@CLIENTS)` of many clients' states in one call.

        Random numbers, and values that all clients share, equal the ones of `initialize_client` bit
        for bit. In the graph runtime, vectorized functions of random numbers may round differently,
        as in rounds.
        """

        @tff.federated_computation(tff.types.FederatedType(np.int32, tff.CLIENTS))
        def initialize_clients(client_ids):
            return tff.federated_map(self.initialize_client, client_ids)

        return initialize_clients


def check_process(process: PersonalizedProcess) -> None:
    """Raises a `KindError` unless the argument is a process."""
    tip = "tff_pfl.compose makes one of an algorithm; an experiment has one, experiment.process."
    check_kind("The process", process, PersonalizedProcess, tip)

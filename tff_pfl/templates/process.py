"""The process every algorithm of this library is."""

import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import Examples
from tff_pfl.models import Model
from tff_pfl.templates.errors import ProcessSignatureError
from tff_pfl.templates.federation import ANY_FEDERATION, Federation


class Client(NamedTuple):
    """One client of a cohort, as `PersonalizedProcess.next` takes it.

    Attributes:
        client_id: int32 scalar in `0 .. num_clients - 1`, not that of another of the cohort; or a
            negative number, of a client without an id, see `compose_stateless_view`.
        state: What the client keeps between rounds, of the algorithm's type `C`.
        data: The client's `tff_pfl.local.Examples`, of type `D`.
    """

    client_id: tf.Tensor
    state: Any
    data: Examples


class ServerState(NamedTuple):
    """The server's state between rounds.

    Attributes:
        round_num: int32 scalar, the number of rounds done.
        algorithm: The algorithm's own state, what its `server_init` returns.
        aggregators: The state of each exchange's aggregator, by the exchange's name.
    """

    round_num: tf.Tensor
    algorithm: Any
    aggregators: Any


class ProcessOutput(NamedTuple):
    """What a round returns.

    Attributes:
        state: The `ServerState` after the round, placed at the server.
        clients: The new state of each client of the cohort, in its order, placed at the clients.
        metrics: Measurements of the round, placed at the server.
    """

    state: Any
    clients: Any
    metrics: Any


class PersonalizedProcess(tff.templates.IterativeProcess):
    """A federated algorithm with a model for every client.

    With `S` the type of the server's state, `C` that of a client's, `D` that of its examples, `W`
    that of a model's weights, `M` that of the metrics and `V` that of a mapping of tensors:

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

    `W` are the weights of `evaluated_model`, or, where it is `None`, of the algorithm's model.
    An algorithm whose clients keep nothing has an empty structure as `C`.
    """

    def __init__(
        self,
        initialize_fn: tff.Computation,
        next_fn: tff.Computation,
        *,
        initialize_client_fn: tff.Computation,
        personalize_fn: tff.Computation,
        further_models: Mapping[str, tff.Computation] = types.MappingProxyType({}),
        global_weights_fn: tff.Computation | None = None,
        snapshot_fn: tff.Computation | None = None,
        client_snapshot_fn: tff.Computation | None = None,
        evaluated_model: Model | None = None,
        made_for: Federation = ANY_FEDERATION,
        noise_multiplier: float | None = None,
        takes_new_clients: bool = True,
    ):
        """Creates the process.

        Raises:
            ProcessSignatureError: If a computation has not the type of the class docstring.
        """
        super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
        client_type = _client_type(next_fn)
        state_type = initialize_fn.type_signature.result
        _check(
            next_fn.type_signature.result,
            {
                "state": state_type,
                "clients": tff.types.FederatedType(client_type.state, tff.CLIENTS),
            },
            "`next` returns <state=S@SERVER, clients={C}@CLIENTS, metrics=M@SERVER>",
        )
        _check_assignable(
            initialize_client_fn.type_signature,
            tff.types.FunctionType(np.int32, client_type.state),
            "`initialize_client` is (int32 -> C)",
        )
        for name, fn in {"personalize": personalize_fn, **further_models}.items():
            _check_assignable(
                fn.type_signature.parameter,
                next_fn.type_signature.parameter,
                f"`{name}` takes what `next` takes",
            )
        for name, fn in (("global_weights", global_weights_fn), ("snapshot", snapshot_fn)):
            if fn is not None:
                _check_assignable(
                    fn.type_signature.parameter, state_type.member, f"`{name}` takes S, not placed"
                )
        if client_snapshot_fn is not None:
            _check_assignable(
                client_snapshot_fn.type_signature.parameter,
                tff.types.FederatedType(client_type.state, tff.CLIENTS),
                "`client_snapshot` takes {C}@CLIENTS",
            )
        self._client_type = client_type
        self._initialize_client_fn = initialize_client_fn
        self._personalize_fn = personalize_fn
        self._further_models = types.MappingProxyType(dict(further_models))
        self._global_weights_fn = global_weights_fn
        self._snapshot_fn = snapshot_fn
        self._client_snapshot_fn = client_snapshot_fn
        self._evaluated_model = evaluated_model
        self._made_for = made_for
        self._noise_multiplier = noise_multiplier
        self._takes_new_clients = takes_new_clients

    def replace(
        self,
        *,
        next_fn: tff.Computation | None = None,
        personalize_fn: tff.Computation | None = None,
        further_models: Mapping[str, tff.Computation] | None = None,
    ) -> "PersonalizedProcess":
        """The process with others of these; all else is its own."""
        return PersonalizedProcess(
            self.initialize,
            next_fn or self.next,
            initialize_client_fn=self.initialize_client,
            personalize_fn=personalize_fn or self.personalize,
            further_models=self.further_models if further_models is None else further_models,
            global_weights_fn=self.global_weights,
            snapshot_fn=self.snapshot,
            client_snapshot_fn=self.client_snapshot,
            evaluated_model=self.evaluated_model,
            made_for=self.made_for,
            noise_multiplier=self.noise_multiplier,
            takes_new_clients=self.takes_new_clients,
        )

    @property
    def client_type(self) -> tff.types.StructType:
        """`<client_id=int32, state=C, data=D>`, what `next` takes of each client."""
        return self._client_type

    @property
    def client_state_type(self) -> tff.types.Type:
        """`C`, what a client keeps between rounds."""
        return self._client_type.state

    @property
    def initialize_client(self) -> tff.Computation:
        """`(int32 -> C)`: the state of a client that was never seen, from its id."""
        return self._initialize_client_fn

    @functools.cached_property
    def initialize_clients(self) -> tff.Computation:
        """`({int32}@CLIENTS -> {C}@CLIENTS)`: the same for many clients, in one call.

        Random numbers and what is common to all clients are those of `initialize_client` bit for
        bit. In the graph runtime, vectorized functions of them may round otherwise, as in rounds.
        """

        @tff.federated_computation(tff.types.FederatedType(np.int32, tff.CLIENTS))
        def initialize_clients(client_ids):
            return tff.federated_map(self.initialize_client, client_ids)

        return initialize_clients

    @property
    def personalize(self) -> tff.Computation:
        """The weights to evaluate as each client's own model."""
        return self._personalize_fn

    @property
    def further_models(self) -> Mapping[str, tff.Computation]:
        """Models that are evaluated beside each client's own, by name; see `compose`."""
        return self._further_models

    @property
    def global_weights(self) -> tff.Computation | None:
        """`(S -> W)`: the global model, or `None` for an algorithm without one."""
        return self._global_weights_fn

    @property
    def snapshot(self) -> tff.Computation | None:
        """`(S -> V)`: what of the server's state people may want to look at, or `None`."""
        return self._snapshot_fn

    @property
    def client_snapshot(self) -> tff.Computation | None:
        """`({C}@CLIENTS -> {V}@CLIENTS)`: what of clients' states to look at, or `None`."""
        return self._client_snapshot_fn

    @property
    def evaluated_model(self) -> Model | None:
        """The model to evaluate weights with, if it is not the algorithm's; see `Algorithm`."""
        return self._evaluated_model

    @property
    def made_for(self) -> Federation:
        """The federation, as far as the algorithm computes with its numbers."""
        return self._made_for

    @property
    def noise_multiplier(self) -> float | None:
        """That of the privacy it gives its clients, or `None` without any; see `Algorithm`."""
        return self._noise_multiplier

    @property
    def takes_new_clients(self) -> bool:
        """Whether `personalize` makes a model of a client that the server was not made for.

        It does not where the server has something of each client, by its id.
        """
        return self._takes_new_clients


def _client_type(next_fn):
    parameter = next_fn.type_signature.parameter
    if (
        len(parameter) == 2
        and isinstance(parameter[1], tff.types.FederatedType)
        and parameter[1].placement is tff.CLIENTS
        and isinstance(parameter[1].member, tff.types.StructType)
        and tuple(tff.structure.name_list(parameter[1].member)) == Client._fields
    ):
        return parameter[1].member
    raise ProcessSignatureError(
        "`next` takes <S@SERVER, {<client_id=int32, state=C, data=D>}@CLIENTS>, found "
        f"{parameter}."
    )


def _check(result, expected_fields, rule):
    for name, expected in expected_fields.items():
        if not isinstance(result, tff.types.StructType) or not tff.structure.has_field(
            result, name
        ):
            raise ProcessSignatureError(f"{rule}; field {name!r} is missing in {result}.")
        _check_assignable(getattr(result, name), expected, rule)


def _check_assignable(found, expected, rule):
    if not expected.is_assignable_from(found):
        raise ProcessSignatureError(
            f"{rule}.\n  expected: {expected}\n  found:    {found}\n"
            "Tip: compose builds computations that fit each other."
        )

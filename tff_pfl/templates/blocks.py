"""Maps a traced function over clients, sends its messages, counts bytes, checks client ids."""

import collections
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import ClientContext, trees
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models.statistics import recorded_uses
from tff_pfl.templates import errors
from tff_pfl.templates.exchange import Message
from tff_pfl.templates.federation import ANY_FEDERATION, Federation
from tff_pfl.templates.values import Client
from tff_pfl.tracing.dependence import leaves_in_use
from tff_pfl.tracing.structures import empty_value, is_empty
from tff_pfl.tracing.trace import trace


def payload_bytes(label: str, type_signature: tff.types.Type) -> int:
    """Returns the number of bytes of a message of this type.

    Raises:
        BlockResultError: A shape is not fully known.
    """
    total = 0
    for spec in tf.nest.flatten(tff.types.type_to_tf_tensor_specs(type_signature)):
        if not spec.shape.is_fully_defined():
            raise errors.BlockResultError(
                f"{label} has a tensor of unknown size, {spec.dtype.name}{spec.shape}, in\n"
                f"  {type_signature}\nTip: fix its shape with tf.ensure_shape."
            )
        total += spec.shape.num_elements() * spec.dtype.size
    return total


class ClientBlock:
    """A function that is mapped over the clients of a cohort, with its messages.

    Attributes:
        work: The computation that is mapped: of a mapping of `client_id`, `state`, `data`,
            `round_num` and, where there are any, the messages `shared` and `own`, and `carry`.
        distribute: `(S -> B)`, what is broadcast, traced.
        broadcasts: Whether anything is broadcast.
        selects: Whether clients receive a message of their own.
        down_bytes: The number of bytes of a client's message.
    """

    def __init__(
        self,
        label: str,
        fn: Callable[[Any, Client, ClientContext], Any],
        *,
        distribute: Callable[[Any], Any],
        select: Callable[[Any, Any], Any] | None,
        server_type: tff.types.Type,
        client_type: tff.types.StructType,
        carry_type: tff.types.Type | None = None,
        made_for: Federation = ANY_FEDERATION,
        seed: tuple[int, int],
    ):
        """Traces the block.

        Args:
            label: The name of the block in errors.
            fn: `(message, Client, ClientContext) -> result`.
            distribute: `(S -> B)`.
            select: `(<S, int32> -> P)` or `None`.
            server_type: `S`.
            client_type: `<client_id=int32, state=C, data=D>`.
            carry_type: The type of `ClientContext.carry`; `None` if there is no carry.
            made_for: The federation of the clients. With `num_clients`, a client with an id outside
                of it works with the nearest id in it, so that the check of ids is what fails.
            seed: The seed of the run, and the index of this block.
        """
        self._server_type = server_type
        self.distribute = trace(
            f"{label}: distribute",
            lambda server: _of_lasting_shapes(distribute(server)),
            server_type,
        )
        shared_type = self.distribute.type_signature.result
        self.down_bytes = payload_bytes(f"{label}: the broadcast message", shared_type)
        inputs = collections.OrderedDict(
            client_id=client_type.client_id,
            state=client_type.state,
            data=client_type.data,
            round_num=np.int32,
        )
        self.broadcasts = not is_empty(shared_type)
        nothing = None if self.broadcasts else empty_value(shared_type)
        if self.broadcasts:
            inputs["shared"] = shared_type
        self._select, self.selects = None, select is not None
        if select is not None:

            def select_known(server, client_id):
                return select(server, made_for.nearest_id(client_id))

            own_type = trace(
                f"{label}: select", select_known, server_type, np.int32
            ).type_signature.result
            # The stock runtime puts the selected value into a data set, which reorders names;
            # without names there is only one order.
            self._select = trace(
                f"{label}: select",
                lambda server, client_id: _flat(select_known(server, client_id)),
                server_type,
                np.int32,
            )
            self.down_bytes += payload_bytes(f"{label}: the selected message", own_type)
            inputs["own"] = own_type
            self._only, self._select_known = _single_element(own_type), select_known
        if carry_type is not None:
            inputs["carry"] = carry_type

        def work(inputs):
            message = inputs.get("shared", nothing)
            if select is not None:
                message = Message(shared=message, own=inputs["own"])
            round_num = inputs["round_num"]
            client_id = inputs["client_id"]
            if select is not None:
                client_id = _waiting(client_id, round_num)
            client = Client(client_id, inputs["state"], inputs["data"])
            known_id = made_for.nearest_id(client_id)
            context = ClientContext(
                round_num=round_num,
                client_id=known_id,
                seed=client_seed(run_seed(*seed), round_num, known_id),
                carry=inputs.get("carry", ()),
            )
            return fn(message, client, context)

        with recorded_uses() as uses:
            self.work = trace(label, work, tff.types.to_type(inputs))
        if uses == {"gradient"}:
            raise errors.StatisticsError(
                f"{label} calls Model.gradient on a model with batch normalisation, and never "
                "assigns its moving statistics. Take the gradient by Model.training_gradient, and "
                "assign its statistics after each step by models.with_statistics."
            )

    @functools.cached_property
    def selected_from(self) -> tff.Computation:
        """`(S -> P)`, the tensors of the server's state that `select` uses."""
        in_use = self._in_use()

        def parts(server):
            return tuple(itertools.compress(tf.nest.flatten(server), in_use))

        return trace("the tensors that select uses", parts, self._server_type)

    @functools.cached_property
    def select_from(self) -> tff.Computation:
        """`(<P, int32> -> own message)`, `select` on the tensors of `selected_from`."""
        in_use = self._in_use()
        specs = tff.types.type_to_tf_tensor_specs(self._server_type)

        def select(parts, client_id):
            parts = iter(parts)
            leaves = [
                next(parts) if used else tf.zeros([n or 0 for n in spec.shape], spec.dtype)
                for used, spec in zip(in_use, tf.nest.flatten(specs), strict=True)
            ]
            server = tf.nest.pack_sequence_as(specs, leaves)
            return _of_lasting_shapes(self._select_known(server, client_id))

        parts_type = self.selected_from.type_signature.result
        return trace("select, by a client", select, parts_type, np.int32)

    def _in_use(self) -> list[bool]:
        specs = tff.types.type_to_tf_tensor_specs(self._server_type)
        return leaves_in_use(self._select_known, specs, tf.TensorSpec([], tf.int32))

    def map(self, server_state, round_num, clients, client_states, carry=None, *, selects=True):
        """Sends the messages and maps the work, inside a federated computation.

        Args:
            server_state: `S`, at the server.
            round_num: int32, at the server.
            clients: The `Client`s, at the clients.
            client_states: Their states, which replace those of `clients`.
            carry: Their carries from the exchange before; `None`: nothing.
            selects: Whether a message to one client is sent by `federated_select`. If not, what it
                is selected from is broadcast, and the client selects; see `selected_from`.
        """
        round_num = tff.federated_broadcast(round_num)
        shared = own = None
        if self.broadcasts:
            shared = tff.federated_broadcast(tff.federated_map(self.distribute, server_state))
        if self._select is not None and not selects:
            known = tff.federated_broadcast(tff.federated_map(self.selected_from, server_state))
            own = tff.federated_map(self.select_from, (known, clients.client_id))
        elif self._select is not None:
            own = self.select(server_state, clients.client_id, round_num)
        return self.map_received(shared, own, round_num, clients, client_states, carry)

    def select(self, server_state, client_ids, round_num):
        """Sends each client its own message, inside a federated computation.

        Args:
            server_state: `S`, at the server.
            client_ids: int32, at the clients.
            round_num: int32, at the clients.
        """
        keys = tff.federated_map(_as_keys, (client_ids, round_num))
        upper_bound = tff.federated_value(np.int32(np.iinfo(np.int32).max), tff.SERVER)
        selected = tff.federated_select(keys, upper_bound, server_state, self._select)
        return tff.federated_map(self._only, selected)

    def map_received(self, shared, own, round_num, clients, client_states, carry=None):
        """Maps the work over clients that have their messages, inside a federated computation.

        Args:
            shared: The message that was broadcast, at the clients; unused if nothing is.
            own: The messages to single clients, at the clients; unused without any.
            round_num: int32, at the clients.
            clients: See `map`.
            client_states: See `map`.
            carry: See `map`.
        """
        inputs = collections.OrderedDict(
            client_id=clients.client_id,
            state=client_states,
            data=clients.data,
            round_num=round_num,
        )
        if self.broadcasts:
            inputs["shared"] = shared
        if self.selects:
            inputs["own"] = own
        if carry is not None:
            inputs["carry"] = carry
        return tff.federated_map(self.work, tff.federated_zip(inputs))


IDS = tff.types.TensorType(np.int32, [None])
"""The type of the ids of a cohort."""


def ids_of_cohort(client_ids):
    """Gathers the ids of a cohort at the server, which chose it, in a federated computation.

    They are checked there, once for the cohort, because assertions in client work would cost time
    for each client, and XLA drops them.
    """
    return tff.federated_aggregate(client_ids, _no_ids(), _append_id, _join_ids, _same_ids)


def no_ids():
    """Returns no ids, at the server, in a federated computation that does not check any."""
    return tff.federated_eval(_no_ids, tff.SERVER)


def round_of_known_clients(round_num, client_ids, federation: Federation):
    """Returns `round_num`, in a federated computation, after a check that all ids are known.

    A `ClientBlock` uses an id only after `round_num` is computed, and so after the check.
    """

    @tff.tensorflow.computation(np.int32, IDS)
    def checked(round_num, ids):
        with tf.control_dependencies(check_ids(ids, federation, distinct=False)):
            return tf.identity(round_num)

    return tff.federated_map(checked, (round_num, ids_of_cohort(client_ids)))


def check_ids(ids, federation: Federation, *, distinct: bool) -> list[tf.Operation | None]:
    """Asserts that the ids of a cohort are valid.

    Args:
        ids: int32 `[k]`.
        federation: The federation that the algorithm was made for; without `num_clients`, any id
            is valid.
        distinct: Whether a client may be in the cohort only once. Negative ids stand for unknown
            clients, and may repeat.

    Returns:
        The assertions; `None` for an assertion that ran eagerly.
    """
    rules = []
    if distinct:
        known = tf.boolean_mask(ids, ids >= 0)
        is_distinct = tf.equal(tf.size(tf.unique(known)[0]), tf.size(known))
        rules.append((is_distinct, "A client must not be in a cohort twice."))
    if (number := federation.num_clients) is not None:
        are_known = tf.reduce_all((ids >= 0) & (ids < number))
        rules.append(
            (are_known, f"The algorithm was made for num_clients={number}: ids 0 to {number - 1}.")
        )
    return [
        tf.debugging.Assert(is_right, [f"{rule} Client ids:", ids], summarize=1000)
        for is_right, rule in rules
    ]


@tff.tensorflow.computation
def _no_ids():
    return trees.no_rows([], tf.int32)


@tff.tensorflow.computation(IDS, np.int32)
def _append_id(ids, client_id):
    return tf.concat([ids, client_id[tf.newaxis]], axis=0)


@tff.tensorflow.computation(IDS, IDS)
def _join_ids(ids, others):
    return tf.concat([ids, others], axis=0)


@tff.tensorflow.computation(IDS)
def _same_ids(ids):
    return ids


def _waiting(client_id, round_num):
    """Returns the id as a function of the round, so that all uses of it wait for the check."""
    return client_id + (round_num - round_num)


@tff.tensorflow.computation(np.int32, np.int32)
def _as_keys(client_id, round_num):
    return tf.reshape(_waiting(client_id, round_num), [1])


def _of_lasting_shapes(message):
    """Keeps shapes that only Python knows when TFF imports the graph into another."""
    return tf.nest.map_structure(
        lambda leaf: tf.ensure_shape(leaf, tf.convert_to_tensor(leaf).shape), message
    )


def _flat(value) -> tuple:
    """Returns the tensors of a value, in the order of its TFF type."""
    if not tf.is_tensor(value):
        value = tff.structure.from_container(value, recursive=True)
        return tuple(tff.structure.flatten(value))
    return (value,)


def _single_element(element_type):
    """Makes `(<tensors of T>* -> T)`, which returns the element of a sequence of one."""
    leaves_type = tff.types.to_type(tuple(_leaf_types(element_type)))

    def only(sequence):
        leaves = sequence.get_single_element()
        if isinstance(element_type, tff.types.TensorType):
            return leaves[0]
        packed = tff.structure.pack_sequence_as(element_type, leaves)
        return tff.types.type_to_py_container(packed, element_type)

    return tff.tensorflow.computation(only, tff.types.SequenceType(leaves_type))


def _leaf_types(type_signature):
    if isinstance(type_signature, tff.types.TensorType):
        return [type_signature]
    return [leaf for element in type_signature for leaf in _leaf_types(element)]

"""Exports both sides of a process as SavedModels, which need neither this library nor TFF.

A device runs the client's side and a coordinator the server's. How messages travel, and who may
send them, is up to you; `examples/deployment` shows a way.
"""

import collections
import hashlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.protobuf import saved_model_pb2

from tff_pfl.deployment.exchange_forms import FormError
from tff_pfl.experiment.fingerprint import fingerprint
from tff_pfl.models.saved_model import write_saved_model
from tff_pfl.output.files import write_json
from tff_pfl.runtime.graph.imported import ImportedFunction
from tff_pfl.templates.blocks import ClientBlock
from tff_pfl.templates.composed_exchange import in_parts
from tff_pfl.templates.process import PersonalizedProcess, check_process
from tff_pfl.templates.values import Client
from tff_pfl.tracing.frozen import as_variables
from tff_pfl.tracing.structures import is_empty
from tff_pfl.tracing.trace import trace

_DESCRIPTION = "process.json"

mapreduce = tff.backends.mapreduce


def export_client(process: PersonalizedProcess, folder: str | os.PathLike) -> None:
    """Writes the client's side of a process as a SavedModel.

    Its signatures take and return tensors by name. A name has the place of the tensor in a
    structure, such as `state__head__kernel`; a tensor that goes into another signature has the same
    name there. A structure without tensors, such as the state of a client of FedAvg, is left out.

        initialize    : client_id -> state
        work_EXCHANGE : client_id, state, data, message[, own][, carry] -> upload, state, carry
        personalize   : client_id, state, data, message[, own] -> weights

    A round runs the `work` of each exchange, in the order of `process.json`, and a client keeps
    `state` for the next round and `carry` for the next exchange. If the server does not count the
    upload, the client keeps the state from before. `data` are `x`, `y` and `size`, the number of
    examples, as in `tff_pfl.local.Examples`; rows after `size` are ignored. `message` is the same
    for all clients, `own` is for this one. `upload` has all that the aggregator and the report
    take: the upload of the method, its weight, the counts and metrics.

    Equal inputs give equal outputs, so that a client that is asked twice answers the same.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> process = tff_pfl.compose(tff_pfl.make("ditto", model, local), testing.EXAMPLES_TYPE)
        >>> tff_pfl.deployment.export_client(process, "device")
        >>> sorted(tf.saved_model.load("device").signatures)
        ['initialize', 'personalize', 'work_train']

    Args:
        process: The process.
        folder: A new or empty folder. Besides the SavedModel it receives `process.json`: the
            fingerprint of the process, which is the same on both sides; the exchanges, with the
            bytes of a client's messages; each signature's tensors; and a digest of the SavedModel.

    Raises:
        FormError: An aggregator uses secure sums, which the exported server cannot do.
        FileExistsError: The folder is not empty.
    """
    check_process(process)
    _check_empty(folder)
    parts = {"initialize": [_Part(process.initialize_client, "client_id", "state")]}
    for index, exchange in enumerate(process.exchanges):
        form, sent = _aggregation(process, index)
        parts[f"work_{exchange.name}"] = [
            _Part(exchange.block.work, _FIELDS, _FIELDS),
            _Part(form.work, (_FIELDS, "message__aggregator"), (sent, "", "", "")),
        ]
    parts["personalize"] = [_Part(process.personalization.work, _FIELDS, "weights")]
    _save(process, parts, ("state", "carry", "upload", "weights"), folder)


def export_server(process: PersonalizedProcess, folder: str | os.PathLike) -> None:
    """Writes the server's side of a process as a SavedModel.

    Its signatures take and return tensors by name, as those of `export_client`:

        initialize          : -> server
        message_EXCHANGE    : server -> message
        select_EXCHANGE     : server, client_id -> own
        zero_EXCHANGE       : -> total
        accumulate_EXCHANGE : total, upload[, client_id] -> total
        merge_EXCHANGE      : total, other -> total
        update_EXCHANGE     : server, total -> server, metrics
        personalize_message : server -> message
        personalize_select  : server, client_id -> own
        global_weights      : server -> weights

    `select` exists if clients receive messages of their own, and `global_weights` if the method
    has a global model. `accumulate` takes the id if the server checks that no client is in a cohort
    twice; give it that of the device that sent the upload. `total` is of uploads; `merge` is for
    servers that accumulate in parallel. A round equals that of the process bit for bit if uploads
    are accumulated in the order of the cohort, without `merge`.

    Args:
        process: The process.
        folder: See `export_client`.

    Raises:
        FormError: See `export_client`.
        FileExistsError: The folder is not empty.
    """
    check_process(process)
    _check_empty(folder)
    initialize = mapreduce.get_state_initialization_computation(process.initialize)
    parts = {"initialize": [_Part(initialize, (), "server")]}
    for index, exchange in enumerate(process.exchanges):
        (form, sent), name = _aggregation(process, index), exchange.name
        parts |= _messages(process, exchange.block, "message_" + name, "select_" + name)
        parts[f"message_{name}"].append(_Part(form.prepare, "server", "message__aggregator"))
        parts[f"zero_{name}"] = [_Part(form.zero, (), "total")]
        parts[f"accumulate_{name}"] = [_Part(form.accumulate, ("total", sent), "total")]
        parts[f"merge_{name}"] = [_Part(form.merge, ("total", "other"), "total")]
        parts[f"update_{name}"] = [
            _Part(form.report, "total", "aggregate"),
            _Part(form.update, ("server", ("aggregate", "", "", "")), ("server", "metrics")),
        ]
    block, names = process.personalization, ("personalize_message", "personalize_select")
    parts |= _messages(process, block, *names)
    if process.global_weights is not None:
        parts["global_weights"] = [_Part(process.global_weights, "server", "weights")]
    _save(process, parts, ("server", "message", "own", "total", "metrics", "weights"), folder)


def named_tensors(label: str, value: Any) -> dict[str, np.ndarray]:
    """Returns the tensors of a structure by the names that `export_client` gives them.

    Example:
        >>> tff_pfl.deployment.named_tensors("state", {"head": {"bias": np.zeros(2)}})
        {'state__head__bias': array([0., 0.])}

    Args:
        label: The label of the structure, such as "state" or "data".
        value: The structure, of mappings, tuples and lists.
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, (tuple, list)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {label: np.asarray(value)}
    return {
        name: tensor
        for key, element in value.items()
        for name, tensor in named_tensors(_inside(label, key), element).items()
    }


def _inside(label: str, key: str | int) -> str:
    return f"{label}__{re.sub(r'[^0-9A-Za-z]', '_', str(key))}"


def _aggregation(process, index) -> tuple[tff.backends.mapreduce.MapReduceForm, "_Label"]:
    """Returns the form of what follows the client work of an exchange, and what clients send."""
    exchange = process.exchanges[index]
    result_type = exchange.block.work.type_signature.result
    sent_type = collections.OrderedDict(client_id=np.int32)
    sent_type |= {name: result_type[name] for name in ("upload", "weight", "report")}

    @tff.federated_computation(
        process.initialize.type_signature.result,
        tff.types.FederatedType(tff.types.to_type(sent_type), tff.CLIENTS),
    )
    def next_state(state, sent):
        new, metrics = exchange.finish(in_parts(process.exchanges, state), sent.client_id, sent)
        return tff.federated_zip(new), metrics

    form = mapreduce.get_map_reduce_form_for_computation(next_state)
    sent_type, *secure_types = form.work.type_signature.result
    if not all(map(is_empty, secure_types)):
        raise FormError(
            f"Exchange {exchange.name!r} uses secure sums, but an exported server sees uploads. "
            "Export a process with report='clear' and an aggregator without secure sums."
        )
    if not exchange.checks_cohort:
        return form, "upload"
    uploads = (f"upload__{part}" for part in range(1, len(sent_type)))
    return form, ("client_id", *uploads)  # the server knows who sends


def _messages(process, block: ClientBlock, message: str, select: str) -> dict[str, list["_Part"]]:
    """Returns what makes the messages of a block."""
    state_type = process.initialize.type_signature.result.member
    round_num = trace("round_num", lambda server: server.round_num, state_type)
    parts = {
        message: [
            _Part(round_num, "server", "message__round_num"),
            _Part(block.distribute, "server__algorithm", "message__shared"),
        ]
    }
    if block.selects:
        parts[select] = [
            _Part(block.selected_from, "server__algorithm", "known"),
            _Part(block.select_from, ("known", "client_id"), "own"),
        ]
    return parts


# The label of a value: a name for the value, or labels for its elements, by name or by position.
_Label = str | Mapping[str, "_Label"] | Sequence["_Label"]


# The labels of what a client takes and returns.
_FIELDS: _Label = {
    **{name: name for name in (*Client._fields, "own", "weight", "report", "carry")},
    "upload": "sent",  # to the aggregator's part of the client's work, which makes the upload
    "round_num": "message__round_num",
    "shared": "message__shared",
}


class _Part:
    """A computation as a function of named tensors.

    Attributes:
        inputs: The specs of the tensors that it takes, by name.
        outputs: The specs of those that it returns.
    """

    def __init__(self, computation: tff.Computation, takes: _Label, gives: _Label):
        """Imports the computation.

        Args:
            computation: The computation.
            takes: The label of its argument; `()` without one.
            gives: The label of its result.
        """
        signature = computation.type_signature
        self.inputs = (
            {} if signature.parameter is None else dict(_named(takes, signature.parameter))
        )
        self.outputs = dict(_named(gives, signature.result))
        message = tff.framework.ConcreteComputation.get_proto(computation).tensorflow
        self._function = ImportedFunction(message, list(self.inputs.values()))

    def __call__(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the results, by name."""
        results = self._function(*(tensors[name] for name in self.inputs))
        return {
            name: tf.ensure_shape(result, spec.shape)
            for (name, spec), result in zip(self.outputs.items(), results, strict=True)
        }


def _named(label: _Label, type_: tff.types.Type) -> Iterator[tuple[str, tf.TensorSpec]]:
    """Yields the specs of a type's tensors with their names."""
    if isinstance(type_, tff.types.TensorType):
        yield str(label), tf.TensorSpec(type_.shape, type_.dtype)
        return
    inner: _Label
    for index, (name, element) in enumerate(tff.structure.iter_elements(type_)):
        if isinstance(label, str):
            inner = _inside(label, name or index)
        else:
            inner = label[name if isinstance(label, Mapping) else index]
        yield from _named(inner, element)


def _check_empty(folder) -> None:
    folder = pathlib.Path(folder).expanduser()
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty. Choose an empty or a new folder.")


def _save(process, parts_of, outputs, folder) -> None:
    folder = pathlib.Path(folder).expanduser()
    saved = tf.Module()
    with as_variables(saved):
        signatures = {name: _signature(parts, outputs) for name, parts in parts_of.items()}
        write_saved_model(saved, folder, signatures)
    content = _without_lines((folder / "saved_model.pb").read_bytes())
    (folder / "saved_model.pb").write_bytes(content)
    description = {
        "process": fingerprint(process.next, process.personalize, process.initialize_client),
        "exchanges": {
            exchange.name: {"bytes_down": exchange.down_bytes, "bytes_up": exchange.up_bytes}
            for exchange in process.exchanges
        },
        "signatures": {name: _described(function) for name, function in signatures.items()},
        "saved_model": hashlib.sha256(content).hexdigest(),
    }
    write_json(folder / _DESCRIPTION, description)


def _without_lines(saved: bytes) -> bytes:
    """Removes the files and lines of the user's code from a serialized SavedModel."""
    model = saved_model_pb2.SavedModel.FromString(saved)
    for graph in (meta.graph_def for meta in model.meta_graphs):
        for nodes in (graph.node, *(each.node_def for each in graph.library.function)):
            for node in nodes:
                node.ClearField("experimental_debug_info")
    return model.SerializeToString(deterministic=True)


def _signature(parts, outputs):
    """Makes a function that calls parts in order, and returns the tensors of some labels."""
    inputs: dict[str, tf.TensorSpec] = {}
    made: set[str] = set()
    for part in parts:
        inputs |= {name: spec for name, spec in part.inputs.items() if name not in made}
        made |= set(part.outputs)

    def call(**tensors):
        made = {}
        for part in parts:
            made |= part(tensors | made)
        return {name: made[name] for name in made if name.partition("__")[0] in outputs}

    return tf.function(call, autograph=False).get_concrete_function(**inputs)


def _described(function) -> dict[str, dict[str, list]]:
    _, inputs = function.structured_input_signature
    described = {"inputs": inputs, "outputs": function.structured_outputs}
    return {
        side: {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in specs.items()}
        for side, specs in described.items()
    }

"""Rejects results of clients, and of the server, that cannot be used."""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.names import IN_PARTS, is_part
from tff_pfl.local import ClientContext, trees
from tff_pfl.local.examples import readable
from tff_pfl.models.totals import Mean
from tff_pfl.templates import errors
from tff_pfl.templates.exchange import ClientOutput, Exchange
from tff_pfl.templates.report import COUNTS, Report
from tff_pfl.templates.values import Client
from tff_pfl.tracing.structures import type_of

_RESERVED = (*COUNTS, "server_kept", "aggregator", "server")


class Carry(NamedTuple):
    """The values that a client keeps from one exchange of a round to the next.

    Attributes:
        accepted: Whether the client was accepted so far; if not, it is left out from now on.
        value: `ClientOutput.carry`.
    """

    accepted: tf.Tensor
    value: Any


def accepting(
    label: str, exchange: Exchange, client_state_type: tff.types.Type
) -> Callable[[Any, Client, ClientContext], Mapping[str, Any]]:
    """Makes client work that replaces results that cannot be used.

    Args:
        label: The name of the exchange in errors.
        exchange: The exchange.
        client_state_type: `C`.

    Returns:
        `(message, Client, ClientContext) -> <state, upload, weight, report, carry>`; the context's
        carry is a `Carry` or `()`.
    """

    def client_work(message, client, context):
        carry = context.carry or Carry(accepted=tf.constant(True), value=())
        context = context._replace(carry=carry.value)
        data, is_readable = readable(client.data)
        output = _checked(label, exchange.client_work(message, client.state, data, context))
        errors.check_same_type(
            f"{label}: client_work must return a state of the type client_init returns",
            client_state_type,
            type_of(output.state),
            "keep data types and shapes; tf.ensure_shape restores a shape that a loop lost.",
        )
        scalars = _Scalars([output.weight, *tf.nest.flatten(output.metrics)])
        checks = [is_readable, output.weight >= 0.0]
        checks += trees.finite_checks(scalars.vectors, output._replace(weight=(), metrics=()))
        if context.client_id is not client.client_id:
            checks.append(tf.equal(client.client_id, context.client_id))
        empty = tf.equal(client.data.size, 0)
        takes_part = tf.logical_and(carry.accepted, tf.logical_not(empty))
        accepted = tf.logical_and(takes_part, tf.reduce_all(tf.stack(checks)))
        failed = tf.not_equal(takes_part, accepted)

        def accept(value):
            return trees.select(accepted, value, trees.zeros_like(value))

        upload = accept(output.upload)
        if exchange.send is not None and tf.nest.flatten(upload):
            upload = exchange.send(upload, context.seed)
        weight, *totals = scalars.unpacked(accept(scalars.vectors))
        counted = tf.stack([accepted, accepted, failed, empty])  # in the order of COUNTS
        return collections.OrderedDict(
            state=trees.select(accepted, output.state, client.state),
            upload=upload,
            weight=weight,
            report=Report(
                counts=tf.where(counted, tf.stack([1, client.data.size, 1, 1]), 0),
                totals=tf.nest.pack_sequence_as(collections.OrderedDict(output.metrics), totals),
            ),
            carry=Carry(accepted, accept(output.carry)),
        )

    return client_work


class _Scalars:
    """Scalars as one vector of each data type, which takes fewer operations than each alone."""

    def __init__(self, scalars: list[tf.Tensor]):
        self._dtypes = [scalar.dtype for scalar in scalars]
        self.vectors = [
            tf.stack([scalar for scalar in scalars if scalar.dtype == dtype])
            for dtype in dict.fromkeys(self._dtypes)
        ]

    def unpacked(self, vectors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the scalars of vectors in the order of the given ones."""
        entries = {vector.dtype: iter(tf.unstack(vector)) for vector in vectors}
        return [next(entries[dtype]) for dtype in self._dtypes]


def guarded(
    label: str, exchange: Exchange, server_type: tff.types.Type
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Makes a finalizer that keeps the old server state unless the new one is finite.

    Args:
        label: The name of the exchange in errors.
        exchange: The exchange.
        server_type: `S`.

    Returns:
        `(<server, round_num[, report], aggregate[, measurements, aggregators]> -> <state, metrics[,
        aggregator]>)`; `aggregators` are the aggregator's states before and after.
    """

    def finalize(inputs):
        old, report = inputs["server"], inputs.get("report")
        result = exchange.finalize(old, inputs["aggregate"], inputs["round_num"])
        if hasattr(result, "_fields") or len(result) != 2:
            raise errors.BlockResultError(
                f"{label}: finalize must return a pair, the server's state and a mapping of "
                f"metrics, found {type(result).__name__}. Without metrics, return state, {{}}."
            )
        new, server_metrics = result
        _check_server_metrics(label, server_metrics)
        new = tf.nest.map_structure(tf.convert_to_tensor, new)
        errors.check_same_type(
            f"{label}: finalize must return a state of the type server_init returns",
            server_type,
            type_of(new),
            "keep the structure, data types and shapes of the server state.",
        )
        sound, metrics = trees.all_finite(*_changed(new, old)), collections.OrderedDict()
        if report is not None:
            counts = dict(zip(COUNTS, tf.unstack(report.counts), strict=True))
            sound = tf.logical_and(counts["num_clients"] > 0, sound)
            for name, mean in report.totals.items():
                metrics[name] = mean.total / mean.count  # NaN if nothing was measured
            metrics.update(counts)
        metrics["server_kept"] = tf.cast(tf.logical_not(sound), tf.int32)
        for name, measured in (
            ("aggregator", inputs.get("measurements", ())),
            ("server", server_metrics),
        ):
            if tf.nest.flatten(measured):
                metrics[name] = tf.nest.map_structure(_as_number, measured)
        result = collections.OrderedDict(state=_choose(sound, new, old), metrics=metrics)
        if "aggregators" in inputs:
            old_aggregator, new_aggregator = inputs["aggregators"]
            if report is None:  # private: the same noise must not be used twice
                sound = trees.all_finite(new_aggregator)
            result["aggregator"] = _choose(sound, new_aggregator, old_aggregator)
        return result

    return finalize


def _as_number(measured):
    """Turns a bool into 0 or 1, as files of numbers have no bools."""
    measured = tf.convert_to_tensor(measured)
    return tf.cast(measured, tf.int32) if measured.dtype == tf.bool else measured


def _changed(new, old) -> list[tf.Tensor]:
    """Returns the tensors of `new` that are not the same objects in `old`."""
    pairs = zip(tf.nest.flatten(new), tf.nest.flatten(old), strict=True)
    return [leaf for leaf, before in pairs if leaf is not before]


def _choose(condition, a, b):
    """Returns `a` or `b`, which may differ in shape, without copying them."""
    if not tf.nest.flatten(a):
        return a
    return tf.cond(condition, lambda: tf.nest.map_structure(tf.identity, a), lambda: b)


def _checked(label, output) -> ClientOutput:
    """Checks the output of client work; returns it as tensors, with a float32 weight."""
    if not isinstance(output, ClientOutput):
        raise errors.BlockResultError(
            f"{label}: client_work returned {type(output).__name__}, not ClientOutput."
        )
    for name in output._fields:
        if getattr(output, name) is None:
            raise errors.BlockResultError(
                f"{label}: client_work returned {name}=None. Return () if there is nothing."
            )
    _check_names(f"{label}: ClientOutput.metrics", output.metrics)
    for name, metric in output.metrics.items():
        if name in _RESERVED:
            raise errors.BlockResultError(
                f"{label}: metric {name!r} has a name that the composer uses itself. Use another "
                f"name than {', '.join(_RESERVED)}."
            )
        if not isinstance(metric, Mean):
            raise errors.BlockResultError(
                f"{label}: metric {name!r} must be a tff_pfl.models.Mean(total, count), found "
                f"{type(metric).__name__}."
            )
    for name, value in {"weight": (output.weight,), **output.metrics}.items():
        numbers = list(map(tf.convert_to_tensor, value))
        if not all(_is_real(number) and number.shape.rank == 0 for number in numbers):
            raise errors.BlockResultError(
                f"{label}: {name} must consist of real scalars, found {type_of(numbers)}."
            )
    output = tf.nest.map_structure(tf.convert_to_tensor, output)
    return output._replace(weight=tf.cast(output.weight, tf.float32))


def _check_server_metrics(label, metrics):
    """Checks that the metrics of `finalize` are real numbers, in mappings, lists and arrays."""
    _check_names(f"{label}: finalize: metrics", metrics)
    for name, metric in metrics.items():
        if isinstance(metric, Mapping):
            _check_server_metrics(label, metric)
            continue
        for leaf in map(tf.convert_to_tensor, tf.nest.flatten(metric)):
            if not _is_real(leaf) and leaf.dtype != tf.bool:
                raise errors.BlockResultError(
                    f"{label}: finalize: metric {name!r} must consist of real numbers, found "
                    f"{leaf.dtype.name}."
                )


def _check_names(label, metrics):
    if not isinstance(metrics, Mapping):
        raise errors.BlockResultError(
            f"{label} must be a mapping from names to metrics, found {type(metrics).__name__}."
        )
    for name in metrics:
        if not is_part(name):
            raise errors.BlockResultError(
                f"{label}: the name of a metric must be a string of {IN_PARTS}, found {name!r}."
            )


def _is_real(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer

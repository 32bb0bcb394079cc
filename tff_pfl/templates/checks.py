"""What blocks return, checked while they are traced."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tff_pfl.models.model import Mean
from tff_pfl.names import IN_PARTS, is_part
from tff_pfl.templates import blocks, errors
from tff_pfl.templates.exchange import ClientOutput
from tff_pfl.templates.report import COUNTS

_RESERVED = (*COUNTS, "server_kept", "aggregator", "server")


def checked_client_output(what: str, output: Any) -> ClientOutput:
    """What client work returned, of tensors, with a float32 weight.

    Args:
        what: Names the exchange in errors.
        output: What client work returned.

    Raises:
        ClientOutputError: If it is no `ClientOutput`, its weight no real scalar, or its metrics no
            mapping from names to `Mean`s of real scalars.
    """
    if not isinstance(output, ClientOutput):
        raise errors.ClientOutputError(
            f"{what}: client_work returned {type(output).__name__}, not ClientOutput."
        )
    if not isinstance(output.metrics, Mapping):
        raise errors.ClientOutputError(
            f"{what}: ClientOutput.metrics must be a mapping from names to tff_pfl.models.Mean, "
            f"found {type(output.metrics).__name__}."
        )
    for name, metric in output.metrics.items():
        if not is_part(name):
            raise errors.ClientOutputError(_no_name(what, name))
        if name in _RESERVED:
            raise errors.ClientOutputError(
                f"{what}: metric {name!r} has a name that the composer gives itself; "
                f"these are {', '.join(_RESERVED)}."
            )
        if not isinstance(metric, Mean):
            raise errors.ClientOutputError(
                f"{what}: metric {name!r} must be a tff_pfl.models.Mean(total, count), "
                f"found {type(metric).__name__}."
            )
        sums = Mean(*map(tf.convert_to_tensor, metric))
        if not all(_is_real(sum_) and sum_.shape.rank == 0 for sum_ in sums):
            raise errors.ClientOutputError(
                f"{what}: metric {name!r} must have real scalars, found {blocks.type_of(sums)}."
            )
    weight = tf.convert_to_tensor(output.weight)
    if weight.shape.rank != 0:
        raise errors.ClientOutputError(
            f"{what}: ClientOutput.weight must be a scalar, has shape {weight.shape}."
        )
    if not _is_real(weight):
        raise errors.ClientOutputError(
            f"{what}: ClientOutput.weight must be a real number, has type {weight.dtype.name}."
        )
    output = tf.nest.map_structure(tf.convert_to_tensor, output)
    return output._replace(weight=tf.cast(weight, tf.float32))


def checked_pair(what: str, result: Any) -> tuple[Any, Any]:
    """The server's state and metrics that `finalize` returned.

    Args:
        what: Names the exchange in errors.
        result: What it returned.

    Raises:
        ServerStateTypeError: If it is no pair. A state alone may have two parts, too.
    """
    if not isinstance(result, tuple | list) or hasattr(result, "_fields") or len(result) != 2:
        raise errors.ServerStateTypeError(
            f"{what}: finalize must return a pair, the server's state and a mapping of metrics, "
            f"found {type(result).__name__}. Without metrics: return state, {{}}."
        )
    return result


def check_server_metrics(what: str, metrics: Any) -> None:
    """Checks what `finalize` measured; a mapping may hold further ones, lists and arrays.

    Args:
        what: Names the exchange in errors.
        metrics: What `finalize` returned beside the server's state.

    Raises:
        ServerMetricsError: If it is no mapping from names to real numbers.
    """
    if not isinstance(metrics, Mapping):
        raise errors.ServerMetricsError(
            f"{what}: finalize must return metrics as a mapping from names to numbers, found "
            f"{type(metrics).__name__}."
        )
    for name, metric in metrics.items():
        for part in (name, *_names_in(metric)):
            if not is_part(part):
                raise errors.ServerMetricsError(_no_name(f"{what}: finalize", part))
        for leaf in map(tf.convert_to_tensor, tf.nest.flatten(metric)):
            if not _is_real(leaf) and leaf.dtype != tf.bool:
                raise errors.ServerMetricsError(
                    f"{what}: finalize: metric {name!r} must be of real numbers, found "
                    f"{leaf.dtype.name}."
                )


def _no_name(what, name) -> str:
    return f"{what}: the name of a metric must be a string of {IN_PARTS}, found {name!r}."


def _names_in(metric) -> Iterator[Any]:
    """All keys of mappings inside of a metric."""
    if isinstance(metric, Mapping):
        yield from metric
        metric = tuple(metric.values())
    if isinstance(metric, list | tuple):
        for part in metric:
            yield from _names_in(part)


def _is_real(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer

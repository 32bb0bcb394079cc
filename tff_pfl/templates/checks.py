"""Checks of what blocks return, made while they are traced."""

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
    """Returns what client work returned, as tensors, with a float32 weight.

    Args:
        what: Names the exchange in errors.
        output: What client work returned.

    Raises:
        BlockResultError: If it is not a `ClientOutput`, its weight not a real scalar, or its
            metrics not a mapping from names to `Mean`s of real scalars.
    """
    if not isinstance(output, ClientOutput):
        raise errors.BlockResultError(
            f"{what}: client_work returned {type(output).__name__}, not ClientOutput."
        )
    _check_mapping(f"{what}: ClientOutput.metrics", output.metrics, "tff_pfl.models.Mean")
    for name, metric in output.metrics.items():
        _check_name(what, name)
        if name in _RESERVED:
            raise errors.BlockResultError(
                f"{what}: metric {name!r} has a name that the composer gives itself; "
                f"these are {', '.join(_RESERVED)}."
            )
        found = type(metric).__name__
        if isinstance(metric, Mean):
            metric = Mean(*map(tf.convert_to_tensor, metric))
            found = blocks.type_of(metric)
        if not isinstance(metric, Mean) or not all(map(_is_real_scalar, metric)):
            raise errors.BlockResultError(
                f"{what}: metric {name!r} must be a tff_pfl.models.Mean(total, count) of real "
                f"scalars, found {found}."
            )
    weight = tf.convert_to_tensor(output.weight)
    if not _is_real_scalar(weight):
        raise errors.BlockResultError(
            f"{what}: ClientOutput.weight must be a real scalar, found {blocks.type_of(weight)}."
        )
    output = tf.nest.map_structure(tf.convert_to_tensor, output)
    return output._replace(weight=tf.cast(weight, tf.float32))


def checked_pair(what: str, result: Any) -> tuple[Any, Any]:
    """Returns the server's state and metrics that `finalize` returned.

    Args:
        what: Names the exchange in errors.
        result: What it returned.

    Raises:
        BlockResultError: If it is not a pair; a state alone with two parts is not one either.
    """
    if not isinstance(result, tuple | list) or hasattr(result, "_fields") or len(result) != 2:
        raise errors.BlockResultError(
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
        BlockResultError: If it is not a mapping from names to real numbers.
    """
    _check_mapping(f"{what}: finalize: metrics", metrics, "numbers")
    for name, metric in metrics.items():
        for part in (name, *_names_in(metric)):
            _check_name(f"{what}: finalize", part)
        for leaf in map(tf.convert_to_tensor, tf.nest.flatten(metric)):
            if not _is_real(leaf) and leaf.dtype != tf.bool:
                raise errors.BlockResultError(
                    f"{what}: finalize: metric {name!r} must be of real numbers, found "
                    f"{leaf.dtype.name}."
                )


def _check_mapping(what, metrics, of):
    if not isinstance(metrics, Mapping):
        raise errors.BlockResultError(
            f"{what} must be a mapping from names to {of}, found {type(metrics).__name__}."
        )


def _check_name(what, name):
    if not is_part(name):
        raise errors.BlockResultError(
            f"{what}: the name of a metric must be a string of {IN_PARTS}, found {name!r}."
        )


def _names_in(metric) -> Iterator[Any]:
    """Yields all keys of mappings inside a metric."""
    if isinstance(metric, Mapping):
        yield from metric
        metric = tuple(metric.values())
    if isinstance(metric, list | tuple):
        for part in metric:
            yield from _names_in(part)


def _is_real(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer


def _is_real_scalar(tensor: tf.Tensor) -> bool:
    return _is_real(tensor) and tensor.shape.rank == 0

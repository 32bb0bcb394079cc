"""Derives models whose weights are computed from other parts."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.models.statistics import with_statistics
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.frozen import Frozen, frozen_of, tensors_of
from tff_pfl.tracing.randomness import nodes

MOST_BYTES = 32 * 2**20  # of constants


def derived(model: Any, init: Callable[[int], Any], weights_of: Callable[[Any], Any]) -> Any:
    """Returns a model as a function of parts; see `Model.in_terms_of`, which checks them."""

    def composed(function):
        return function and (
            lambda parts, *x, **options: function(weights_of(parts), *x, **options)
        )

    def training_pass(parts, x, **options):
        outputs, assigned = model.training_pass(weights_of(parts), x, **options)
        return outputs, with_statistics(parts, assigned)

    def forward(parts, x, **options):
        found = model.forward(weights_of(parts), x, **options)
        return found._replace(weights=with_statistics(parts, found.weights))

    return dataclasses.replace(
        model,
        init=init,
        apply=composed(model.apply),
        features=composed(model.features),
        training_pass=model.training_pass and training_pass,
        forward=model.forward and forward,
        penalty=composed(model.penalty),
        made_of=model.made_of or model,
    )


def with_frozen(weights_of: Callable[[Any, Any], Any], frozen: Any) -> Callable[[Any], Any]:
    """Returns `(parts) -> W` of a function `(parts, frozen) -> W`."""
    kept = tf.nest.map_structure(Frozen.of, frozen)
    return lambda parts: weights_of(parts, tensors_of(kept))


def check_parts(init: Callable[[int], Any], weights_of: Callable[[Any], Any]) -> None:
    """Raises a `ValueError` if the constants of `weights_of` are too large."""
    parts = _graph(lambda: init(0)).structured_outputs
    specs = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), parts)
    traced = _graph(weights_of, specs)
    values = [node.attr["value"].tensor for node in nodes(traced.graph) if node.op == "Const"]
    sizes = [tf.TensorShape(v.tensor_shape).num_elements() * tf.DType(v.dtype).size for v in values]
    captured = [tensor for tensor in traced.captured_inputs if frozen_of(tensor) is None]
    sizes += [math.prod(tensor.shape) * tensor.dtype.size for tensor in captured]
    if sum(sizes) > MOST_BYTES:
        raise ValueError(
            f"The constants of weights_of have {sum(sizes):,} bytes, but at most {MOST_BYTES:,} "
            "bytes can be constants. Pass them as `frozen`, and take them as weights_of(parts, "
            "frozen)."
        )


def _graph(function, *specs):
    function = elementwise_equality()(function)
    return tf.function(function, autograph=False).get_concrete_function(*specs)

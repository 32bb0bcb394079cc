"""Fuzzes the types of clients' values: nested structures of leaves whose shapes may differ."""

import collections
import functools
import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies

from tests.runtime.conformance.cases import assert_same
from tests.runtime.graph.fuzz.drawing import draws
from tff_pfl import runtime

_DTYPES = (np.float32, np.int32, np.bool_, np.complex64, np.str_)
_SHAPES = ((), (2,), (None,), (None, 2), (2, None))
_NUMBERS = (np.float32, np.int32)

leaves = strategies.builds(
    tff.types.TensorType, strategies.sampled_from(_DTYPES), strategies.sampled_from(_SHAPES)
)


def _structs(members):
    named = strategies.dictionaries(
        strategies.sampled_from("abcd"), members, min_size=1, max_size=3
    ).map(lambda fields: tff.types.StructWithPythonType(fields.items(), collections.OrderedDict))
    unnamed = strategies.lists(members, min_size=1, max_size=3).map(
        lambda elements: tff.types.StructWithPythonType(elements, tuple)
    )
    return named | unnamed


types = strategies.recursive(leaves, _structs, max_leaves=5)


def container(type_spec, leaf):
    """Returns a Python structure with `leaf(type)` for each leaf."""
    if not isinstance(type_spec, tff.types.StructType):
        return leaf(type_spec)
    named = [(name, container(t, leaf)) for name, t in tff.structure.iter_elements(type_spec)]
    if named[0][0] is None:
        return tuple(element for _, element in named)
    return collections.OrderedDict(named)


def draw_leaf(rng, leaf_type):
    """Draws a leaf whose unknown dimensions are 0 to 3."""
    shape = [rng.integers(0, 4) if size is None else size for size in leaf_type.shape]
    numbers = rng.integers(0, 9, shape)
    if leaf_type.dtype.type is np.str_:
        return np.asarray(numbers).astype(str).astype(object) if shape else str(numbers)
    return np.asarray(numbers, leaf_type.dtype)[()]


def changed(value):
    """Changes a value in TensorFlow, as client work does."""
    if value.dtype == tf.bool:
        return ~value
    return tf.strings.join([value, "x"]) if value.dtype == tf.string else value + value


def changed_leaf(leaf):
    """Changes a leaf in the same way in NumPy; TFF returns text as bytes."""
    array = np.asarray(leaf)
    if array.dtype.kind in "OU":
        made = [f"{cell}x".encode() for cell in array.ravel()]
        return np.array(made, object).reshape(array.shape) if array.shape else made[0]
    return ~array if array.dtype == np.bool_ else array + array


def is_summable(type_spec) -> bool:
    return type_spec.dtype.type in _NUMBERS and None not in type_spec.shape


def check(type_spec, num_clients, seed, vectorize):
    rng = np.random.default_rng(seed)
    clients = [container(type_spec, functools.partial(draw_leaf, rng)) for _ in range(num_clients)]
    summed = [is_summable(leaf) for leaf in tf.nest.flatten(container(type_spec, lambda t: t))]

    @tff.tensorflow.computation(type_spec)
    def work(value):
        value = tf.nest.map_structure(changed, value)
        return value, list(itertools.compress(tf.nest.flatten(value), summed))

    @tff.federated_computation(tff.types.FederatedType(type_spec, tff.CLIENTS))
    def compute(values):
        results, summable = tff.federated_map(work, values)
        return values, results, tff.federated_sum(summable)

    context = runtime.create_graph_context(vectorize=vectorize)
    with tff.framework.get_context_stack().install(context):
        given, results, total = compute(clients)
    expected = [tf.nest.map_structure(changed_leaf, client) for client in clients]
    assert_same(results, expected)
    assert len(given) == num_clients
    columns = zip(*map(tf.nest.flatten, expected), strict=True)
    assert_same(
        list(total),
        [functools.reduce(np.add, column) for column in itertools.compress(columns, summed)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("vectorize", ["auto", "never"])
def test_structures_are_returned_and_summed(vectorize):
    @draws(200, vectorize)
    @hypothesis.given(types, strategies.integers(1, 4), strategies.integers(0, 2**32 - 1))
    def test(type_spec, num_clients, seed):
        check(type_spec, num_clients, seed, vectorize)

    test()

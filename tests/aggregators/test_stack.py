"""Tests `tff_pfl.aggregators.stack`."""

import collections
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl import runtime
from tff_pfl.aggregators import FieldsFactory, Stack, StackFactory
from tff_pfl.runtime.graph import intrinsics

VECTOR = tff.types.TensorType(np.float32, [2])
WEIGHT = tff.types.to_type(np.float32)


class Upload(NamedTuple):
    """An upload of several data types, whose fields are not in alphabetical order."""

    client_id: Any
    big: Any
    a: Any


UPLOAD = tff.types.StructWithPythonType(
    [
        ("client_id", np.int32),
        ("big", tff.types.TensorType(np.float64, [2, 3])),
        ("a", collections.OrderedDict(z=np.bool_, b=[tff.types.TensorType(np.int64, [1])])),
    ],
    Upload,
)


def upload(client_id):
    return Upload(
        np.int32(client_id),
        client_id + np.arange(6.0).reshape(2, 3),
        collections.OrderedDict(
            z=np.bool_(client_id % 2), b=[np.array([10**10 * client_id], np.int64)]
        ),
    )


CONTEXTS = {
    "graph": lambda: runtime.create_graph_context(vectorize="auto"),
    "stock": runtime.create_cpp_context,
}


@pytest.fixture(scope="module", params=CONTEXTS)
def context(request):
    return CONTEXTS[request.param]()


@pytest.fixture
def on_each_runtime(context):
    with tff.framework.get_context_stack().install(context):
        yield


def create(value_type):
    return StackFactory().create(value_type, WEIGHT)


@pytest.fixture(scope="module")
def vectors():
    return create(VECTOR)


@pytest.fixture(scope="module")
def uploads():
    return create(UPLOAD)


def run(process, values, weights):
    output = process.next(process.initialize(), values, list(map(np.float32, weights)))
    assert len(output.state) == len(output.measurements) == 0
    assert isinstance(output.result, Stack)
    return output.result


def test_process_has_the_documented_types(vectors):
    assert vectors.is_weighted
    assert str(vectors.next.type_signature) == (
        "(<state=<>@SERVER,value={float32[2]}@CLIENTS,weight={float32}@CLIENTS> -> "
        "<state=<>@SERVER,result=<value=float32[?,2],weight=float32[?]>@SERVER,"
        "measurements=<>@SERVER>)"
    )


@together(
    "value_type",
    [
        tff.types.TensorType(np.float32, None),
        tff.types.to_type([VECTOR, (np.int32, tff.types.TensorType(np.int32, [None]))]),
        tff.types.to_type([VECTOR, tff.types.SequenceType(np.float32)]),
    ],
)
def test_only_tensors_of_known_shapes_can_be_stacked(value_type):
    with pytest.raises(TypeError, match="^Only tensors of known shapes can be stacked, found "):
        create(value_type)


@pytest.mark.usefixtures("on_each_runtime")
class TestOnEachRuntime:
    @together("num_clients", [7, 0, 1])
    def test_rows_are_in_the_order_of_the_cohort(self, vectors, num_clients):
        rng = np.random.default_rng(num_clients)
        values = rng.normal(size=(num_clients, 2)).astype(np.float32)
        weights = rng.uniform(size=num_clients).astype(np.float32)
        stack = run(vectors, list(values), weights)
        np.testing.assert_array_equal(stack.value, values)
        np.testing.assert_array_equal(stack.weight, weights)

    def test_strings_can_be_stacked(self):
        stack = run(create(tff.types.to_type([np.str_])), [["b"], ["a"]], [1.0, 2.0])
        np.testing.assert_array_equal(stack.value[0], [b"b", b"a"])

    @pytest.mark.thorough
    def test_structures_are_kept(self, uploads):
        clients = list(map(upload, [5, 0, 8]))
        value = run(uploads, clients, [1.0, 2.0, 3.0]).value
        assert isinstance(value, Upload)
        assert list(value.a) == ["z", "b"]
        expected = tf.nest.map_structure(lambda *rows: np.stack(rows), *clients)
        for actual, leaf in zip(tf.nest.flatten(value), tf.nest.flatten(expected), strict=True):
            assert actual.dtype == leaf.dtype
            np.testing.assert_array_equal(actual, leaf)

    def test_stack_without_clients_has_no_rows(self, uploads):
        stack = run(uploads, [], [])
        shapes = [np.shape(leaf) for leaf in (stack.value.client_id, stack.value.big, stack.weight)]
        assert shapes == [(0,), (0, 2, 3), (0,)]
        assert np.shape(stack.value.a["z"]) == (0,)
        assert np.shape(stack.value.a["b"][0]) == (0, 1)


@together(
    ("ids", "weights", "expected"),
    [
        ([30, 2, 1], [1.0, 1.0, 1.0], [1, 2, 30]),
        ([5, 0, 7, 3], [1.0, 0.0, 0.5, 1e-30], [3, 5, 7]),
        ([4, 3], [0.0, 0.0], []),
        ([], [], []),
    ],
)
def test_accepted_drops_weight_zero_and_sorts_by_id(ids, weights, expected):
    ids = tf.constant(ids, tf.int32)
    value = {"rows": [tf.stack([ids, 10 * ids], axis=1)]}
    accepted = Stack(value, tf.constant(weights, tf.float32)).accepted(ids)
    np.testing.assert_array_equal(accepted["rows"][0], np.outer(expected, [1, 10]))


@together("ids", [[], (), None, tf.constant(3), [1, 2, 3]])
def test_other_ids_are_refused(ids):
    stack = Stack(tf.constant([10.0, 20.0]), tf.ones([2]))
    with pytest.raises(ValueError, match=r"^client_ids must be the ids of all clients of"):
        stack.accepted(ids)


def test_uploads_are_not_folded_within_other_aggregators():
    """A fold copies all earlier uploads for each client; composed processes are flattened."""
    fields = FieldsFactory(x=StackFactory()).create(tff.types.to_type([("x", VECTOR)]), WEIGHT)
    block = tff.framework.to_call_dominant(fields.next.to_building_block())
    aggregate = tff.framework.ConcreteComputation.from_building_block(block)
    uploads = [collections.OrderedDict(x=np.float32([i, -i])) for i in range(3)]
    with (
        tff.framework.get_context_stack().install(runtime.create_graph_context()),
        mock.patch.object(intrinsics, "_appended", wraps=intrinsics._appended) as appended,
    ):
        output = aggregate(fields.initialize(), uploads, [np.float32(1)] * 3)
    appended.assert_called_once()
    np.testing.assert_array_equal(output["result"]["x"]["value"], [[0, 0], [1, -1], [2, -2]])

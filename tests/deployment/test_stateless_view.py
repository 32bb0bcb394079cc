"""Tests of `tff_pfl.deployment.stateless_view`."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.deployment.test_sequence_data import as_sequence
from tests.federation import assert_equal, random_examples
from tests.templates.mean_process import EXAMPLES_TYPE, examples, mean_value
from tff_pfl import algorithms, testing
from tff_pfl.clients import pad_examples
from tff_pfl.deployment import compose_stateless_view, compose_with_sequence_data
from tff_pfl.deployment.stateless_view import _number
from tff_pfl.models import Mean
from tff_pfl.templates import Client, ClientOutput, averaging, compose
from tff_pfl.templates.errors import ProcessSignatureError

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

CLIENTS = [examples(1, 2, 6), examples(), examples(4)]


def composed(change, **options):
    """Composes a method whose clients upload `change(examples, context)`, two numbers."""

    def client_work(weights, state, data, context):
        total = Mean(tf.reduce_sum(data.x), tf.cast(data.size, tf.float32))
        return ClientOutput(state=state, upload=change(data, context), metrics={"x": total})

    algorithm = averaging(
        server_init=lambda seed: tf.zeros([2]),
        client_work=client_work,
        personalize=lambda weights, state, data, context: weights,
        **{"global_weights": lambda weights: weights} | options,
    )
    return compose(algorithm, EXAMPLES_TYPE, seed=1)


@pytest.fixture(scope="module")
def process():
    return composed(lambda data, context: tf.stack([mean_value(data), 1.0]))


@pytest.fixture(scope="module")
def view(process):
    return compose_stateless_view(process)


@pytest.mark.thorough
def test_round_agrees_with_the_process(process, view):
    clients = [Client(np.int32(i), (), data) for i, data in enumerate(CLIENTS)]
    expected = process.next(process.initialize(), clients)
    output = view.next(view.initialize(), CLIENTS)
    assert isinstance(output, tff.learning.templates.LearningProcessOutput)
    assert_equal(output.state, expected.state)
    metrics = dict(output.metrics)
    assert_equal(metrics.pop("client_work")["train"], expected.metrics["train"])
    assert list(metrics) == ["bytes_down_per_client", "bytes_up_per_client"]


@pytest.mark.slow
def test_sequences_have_the_same_ids_and_random_numbers():
    process = composed(lambda data, context: tf.random.stateless_uniform([2], context.seed))
    element = tff.types.to_type([("x", np.float32), ("y", np.int32)])
    sequences = compose_with_sequence_data(process, element, capacity=5)
    view, of_sequences = map(compose_stateless_view, (process, sequences))
    expected = view.next(view.initialize(), CLIENTS)
    output = of_sequences.next(of_sequences.initialize(), list(map(as_sequence, CLIENTS)))
    assert_equal(output.state, expected.state)
    weights = view.get_model_weights(expected.state)
    alone = view.get_model_weights(view.next(view.initialize(), CLIENTS[:1]).state)
    assert np.all(weights != alone)  # clients have different random numbers


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_id_of_a_client_is_a_function_of_its_examples(dtype):
    def number(data):
        tensors = data._replace(x=data.x.astype(dtype))
        return int(_number(type(data)(*map(tf.convert_to_tensor, tensors))))

    data = random_examples(7)
    assert number(data) < 0
    assert number(data) == number(pad_examples(data, 12))
    assert number(data) == int(_number(as_sequence(data._replace(x=data.x.astype(dtype)))))
    reverse = data._replace(x=data.x[::-1], y=data.y[::-1])
    others = [reverse, data._replace(y=(data.y + 1) % 3), data._replace(size=np.int32(6))]
    assert len(set(map(number, [data, *others]))) == 4


def test_global_model_can_be_set(view):
    weights = np.array([3, 4], np.float32)
    changed = view.set_model_weights(view.initialize(), weights)
    assert_equal(view.get_model_weights(changed), weights)
    assert_equal(changed.round_num, view.initialize().round_num)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ditto", {}, "(?s)cannot keep client states.*dense1.*ProgramContext"),
        ("pfedhn", {"num_clients": 4, "hidden_layers": 0}, "receive messages by their ids"),
    ],
)
def test_method_with_client_states_or_messages_has_no_view(name, options, message):
    algorithm = algorithms.make(name, testing.tiny_model(), testing.tiny_local(), **options)
    with pytest.raises(ProcessSignatureError, match=message):
        compose_stateless_view(compose(algorithm, testing.EXAMPLES_TYPE))


def test_method_without_a_global_model_has_no_view():
    process = composed(lambda data, context: tf.zeros([2]), global_weights=None)
    with pytest.raises(ProcessSignatureError, match="(?s)model that can be set.*model: None"):
        compose_stateless_view(process)

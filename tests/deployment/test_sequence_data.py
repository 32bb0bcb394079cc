"""Tests of `tff_pfl.deployment.sequence_data`."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    IMAGE_SHAPE,
    local_sgd,
    make_clients,
    random_examples,
    tiny_model,
)
from tests.runtime.conformance.cases import assert_same
from tff_pfl.algorithms import make
from tff_pfl.deployment import compose_with_sequence_data
from tff_pfl.evaluation import locally_trained
from tff_pfl.templates import compose
from tff_pfl.templates.errors import ProcessSignatureError

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
ELEMENT = tff.types.to_type(collections.OrderedDict(x=(np.uint8, IMAGE_SHAPE), y=np.int32))
FEDAVG = make("fedavg", tiny_model(), local_sgd(), personalized="local")


@pytest.fixture(scope="module")
def process():
    return compose(
        FEDAVG,
        EXAMPLES_TYPE,
        seed=1,
        further_models={"locally_trained": locally_trained(FEDAVG, local_sgd())},
    )


@pytest.fixture(scope="module")
def adapted(process):
    return compose_with_sequence_data(process, ELEMENT, capacity=10)


def as_sequence(data):
    """Returns a client's examples, without its padding, as a `tf.data.Dataset`."""
    rows = collections.OrderedDict(x=data.x[: data.size], y=data.y[: data.size])
    return tf.data.Dataset.from_tensor_slices(rows)


def with_datasets(clients):
    return [client._replace(data=as_sequence(client.data)) for client in clients]


@pytest.mark.thorough
def test_sequences_train_like_tensors(process, adapted):
    clients = make_clients(process, [6, 0, 10])
    state = process.initialize()
    expected = process.next(state, clients)
    output = adapted.next(adapted.initialize(), with_datasets(clients))
    assert_same(output, expected)
    for ours, theirs in (
        (adapted.personalize, process.personalize),
        (adapted.further_models["locally_trained"], process.further_models["locally_trained"]),
    ):
        assert_same(ours(output.state, with_datasets(clients)), theirs(expected.state, clients))


@pytest.mark.thorough
def test_more_examples_than_the_capacity_raise(process, adapted):
    clients = make_clients(process, [11])
    with pytest.raises(Exception, match="A client has more examples than capacity=10"):
        adapted.next(adapted.initialize(), with_datasets(clients))


def test_elements_must_be_examples(process):
    batched = tff.types.to_type(
        [("x", (np.uint8, (None, *IMAGE_SHAPE))), ("y", (np.int32, (None,)))]
    )
    with pytest.raises(ProcessSignatureError, match="(?s)expected: <x=uint8.*without batches"):
        compose_with_sequence_data(process, batched, capacity=10)


def test_element_spec_of_a_data_set_is_accepted(process, adapted):
    spec = as_sequence(random_examples(3)).element_spec
    found = compose_with_sequence_data(process, spec, capacity=10)
    assert found.client_type == adapted.client_type
    with pytest.raises(ProcessSignatureError, match="have sequences of <x=uint8.* already"):
        compose_with_sequence_data(found, spec, capacity=10)

"""Tests the losses of the global model on clients' training examples."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import random_examples, tiny_model, tiny_process
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.algorithms import build_fedavg
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import EvaluationOptions, Evaluator

SIZES = (6, 0, 5, 9)


@pytest.mark.parametrize("create", [runtime.create_graph_context, slow(runtime.create_cpp_context)])
@pytest.mark.parametrize("capacity", [slow(None), "cohort"])
def test_losses_are_the_means_of_all_training_examples(create, capacity):
    data = [random_examples(size, seed=i) for i, size in enumerate(SIZES)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x[:1], d.y[:1]) for d in data], 3)
    process, model = tiny_process(build_fedavg), tiny_model()
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    source = CohortDataSource(dataset, store, process.client_type, seed=0, capacity=capacity)
    with tff.framework.get_context_stack().install(create()):
        evaluator = Evaluator(process, model, dataset, EvaluationOptions(clients_per_call=2))
        state = process.initialize()
        found = evaluator.losses(state, source, np.array([3, 1, 0]))
        assert evaluator.losses(state, source, np.array([], np.int64)).shape == (0,)
    for client_id, loss in zip((3, 0), found[[0, 2]], strict=True):
        logits = model.apply(state.algorithm.weights, data[client_id].x)
        log_probabilities = np.asarray(tf.nn.log_softmax(logits), np.float64)
        by_hand = -np.mean(log_probabilities[range(SIZES[client_id]), data[client_id].y])
        assert loss == pytest.approx(by_hand, rel=1e-5)
    assert np.isnan(found[1]) and found.dtype == np.float64

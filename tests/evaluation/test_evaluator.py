"""Tests which models and clients are evaluated, and when, and snapshots of their states."""

import collections
import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.evaluation.sources import CountingStore, after_a_round, dataset_of, source_of
from tests.federation import EXAMPLES_TYPE, local_sgd, random_examples, tiny_model, tiny_process
from tests.marks import slow
from tests.templates.mean_process import Visits, compose, mean_exchange
from tff_pfl import runtime
from tff_pfl.algorithms import build_fedavg, build_local
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import Evaluation, Evaluator, MetricName, PooledEvaluation, sampled_clients

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
MODEL = tiny_model()
LOCAL = ["client_id", "num_examples"] + [
    f"personalized/local_test/{metric}" for metric in ("loss", "accuracy")
]
POOLED = [
    f"personalized/{pool}/{metric}"
    for pool in ("generalization_test", "synthetic50_test")
    for metric in ("loss", "accuracy")
]


@pytest.fixture(scope="module")
def federation():
    """Returns `(process, server state, source, dataset)` after a round of training."""
    dataset = dataset_of([(random_examples(4 + i, seed=i),) * 2 for i in range(4)])
    process = tiny_process(build_local)
    source = source_of(process, dataset)
    return process, after_a_round(process, source), source, dataset


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("generalization", "before", "last"),
    [
        ("never", LOCAL, LOCAL),
        ("last", LOCAL, LOCAL + POOLED),
        ("always", LOCAL + POOLED, LOCAL + POOLED),
    ],
)
def test_generalization_chooses_evaluations_on_other_clients(
    federation, generalization, before, last
):
    process, state, source, dataset = federation
    options = Evaluation(generalization=generalization)
    evaluator = Evaluator(process, dataset, options)
    assert list(evaluator(state, source, is_last=False).columns()) == before
    assert list(evaluator(state, source, is_last=True).columns()) == last


@pytest.mark.thorough
def test_options_are_passed_to_the_evaluations(federation):
    process, state, source, dataset = federation
    options = Evaluation(
        clients_per_call=3, generalization="last", synthetic=(0.3, 1.0), subsample=True
    )
    values = Evaluator(process, dataset, options, seed=7)(state, source, is_last=True).values
    on_pool = PooledEvaluation(process, dataset, options, seed=7)
    pooled = on_pool(state, source, np.arange(4)).values
    evaluator = Evaluator(process, dataset, Evaluation())
    local = evaluator(state, source, is_last=True).values
    assert list(values) == [*local, *pooled]
    assert MetricName("personalized", "synthetic30_test", "loss") in pooled
    for name, expected in {**local, **pooled}.items():
        np.testing.assert_allclose(values[name], expected, rtol=1e-5)


@pytest.mark.thorough
def test_sample_has_the_metrics_of_its_clients(federation):
    process, state, source, dataset = federation

    def evaluate(number):
        options = Evaluation(clients=number, generalization="last", clients_per_call=2)
        return Evaluator(process, dataset, options)(state, source, is_last=True)

    all_clients, sampled = evaluate(0), evaluate(3)
    ids = sampled_clients(0, 4, 3)
    np.testing.assert_array_equal(sampled.client_ids, ids)
    np.testing.assert_array_equal(sampled.num_examples, all_clients.num_examples[ids])
    assert list(sampled.values) == list(all_clients.values)
    for name, values in sampled.values.items():
        np.testing.assert_allclose(values, all_clients.values[name][ids], rtol=1e-6)
    assert (all_clients.population, sampled.population) == (None, 4)


@pytest.mark.thorough
def test_population_counts_clients_with_examples(federation):
    process, state, source, dataset = federation
    rows, none = dataset.partition.train, np.zeros([0], np.int64)
    partition = Partition((*rows[:2], none, none), (none, none, rows[2], none), (none,) * 4)
    other = FederatedDataset(dataset.x, dataset.y, 3, partition)
    other_source = CohortDataSource(other, source.store, process.client_type, seed=0)
    options = Evaluation(split="validation", clients=4)
    found = Evaluator(process, other, options)(state, other_source, is_last=False)
    assert (len(found.client_ids), found.population) == (4, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(("examples", "rows"), [(5, 16), (300, 200)])
def test_evaluations_compute_the_rows_that_clients_have(examples, rows):
    """Counts the rows of a forward pass: a power of two from 16 on, but at most 200."""
    found = []

    def apply(weights, x, **options):
        found.append(x.shape[0])
        return MODEL.apply(weights, x, **options)

    dataset = dataset_of([(random_examples(4), random_examples(examples))])
    process = build_local(dataclasses.replace(MODEL, apply=apply), EXAMPLES_TYPE, local_sgd())
    evaluator = Evaluator(process, dataset, Evaluation())
    found.clear()
    evaluator.on_own_examples(process.initialize(), source_of(process, dataset))
    assert set(found) == {rows}


def test_sampled_clients_equal_the_golden_value():
    # np.sort(np.random.default_rng([3, 0x5A3B1E]).choice(9, 4, replace=False))
    assert sampled_clients(3, 9, 4).tolist() == [0, 5, 6, 8]
    assert sampled_clients(4, 1000, 100).tolist() != sampled_clients(3, 1000, 100).tolist()


def test_too_large_sample_is_refused(federation):
    process, _, _, dataset = federation
    with pytest.raises(ValueError, match="clients=5 are to be evaluated, .* has only 4 that train"):
        Evaluator(process, dataset, Evaluation(clients=5))


@pytest.mark.thorough
@pytest.mark.parametrize("create", [runtime.create_graph_context, slow(runtime.create_cpp_context)])
@pytest.mark.parametrize("capacity", [slow(None), "cohort"])
def test_losses_are_the_means_of_all_training_examples(create, capacity):
    """Compares losses of the global model with NumPy, and checks that they need no states."""
    data = [random_examples(size, seed=i) for i, size in enumerate((6, 0, 5, 9))]
    dataset = dataset_of((own, random_examples(1)) for own in data)
    process = tiny_process(build_fedavg)
    source = source_of(process, dataset, capacity=capacity)
    with tff.framework.get_context_stack().install(create()):
        evaluator = Evaluator(process, dataset, Evaluation(clients_per_call=2))
        state = process.initialize()
        found = evaluator.losses(state, source, np.array([3, 1, 0]))
        assert evaluator.losses(state, source, np.array([], np.int64)).shape == (0,)
    for client_id, loss in zip((3, 0), found[[0, 2]], strict=True):
        logits = MODEL.apply(state.algorithm.weights, data[client_id].x)
        log_probabilities = np.asarray(tf.nn.log_softmax(logits), np.float64)
        by_hand = -np.mean(log_probabilities[range(len(logits)), data[client_id].y])
        assert loss == pytest.approx(by_hand, rel=1e-5)
    assert np.isnan(found[1]) and found.dtype == np.float64
    assert source.store.read == []


def server_snapshot(server):
    return collections.OrderedDict(server=10 * server)


def client_snapshot(state):
    count = tf.cast(state.count, tf.float32)
    return collections.OrderedDict(pair=tf.stack([count, -count]), single=state.count)


SAMPLE = sampled_clients(1, 7, 3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("blocks", "options", "chunks"),
    [
        ({}, {}, []),
        ({"snapshot": server_snapshot}, {}, []),
        ({"client_snapshot": client_snapshot}, {"clients_per_call": 3}, [3, 2, 2]),
        (
            {"snapshot": server_snapshot, "client_snapshot": client_snapshot},
            {"clients": 3, "clients_per_call": 2},
            [2, 1],
        ),
    ],
)
def test_snapshot_has_the_states_of_the_server_and_of_clients(blocks, options, chunks):
    """The state of a client that was never seen counts to its id."""
    blocks = {"client_init": lambda client_id, _: Visits(client_id), **blocks}
    process = compose(mean_exchange(), evaluated_model=MODEL, **blocks)
    seen = {5: 105, 0: 100, 2: 102}
    data = random_examples(1)
    dataset = dataset_of([(data, data)] * 7)
    store = CountingStore(process.initialize_clients, process.client_state_type)
    store.put(seen, [Visits(np.int32(count)) for count in seen.values()])
    store.commit()
    evaluator = Evaluator(process, dataset, Evaluation(**options), seed=1)
    found = evaluator.snapshot(process.initialize(), types.SimpleNamespace(store=store))
    ids = SAMPLE if "clients" in options else np.arange(7)
    counts = np.array([seen.get(i, i) for i in ids.tolist()], np.int32)
    expected = {"server": np.array([10.0, 20.0])} if "snapshot" in blocks else {}
    if "client_snapshot" in blocks:
        expected |= {"client_id": ids} if "clients" in options else {}
        expected |= {"pair": np.stack([counts, -counts], axis=1), "single": counts}
    assert (found.keys(), store.read) == (expected.keys(), chunks)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)

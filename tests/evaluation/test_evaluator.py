"""Tests which models and clients are evaluated, and when."""

import dataclasses

import numpy as np
import pytest

from tests.federation import random_examples, tiny_model, tiny_process
from tests.marks import together
from tff_pfl.algorithms import build_local
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import (
    Evaluation,
    Evaluator,
    MetricName,
    PooledEvaluation,
    sampled_clients,
)

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
    data = [random_examples(4 + i, seed=i) for i in range(4)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    process = tiny_process(build_local)
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    source = CohortDataSource(dataset, store, process.client_type, seed=0)
    iterator = source.iterator()
    output = process.next(process.initialize(), iterator.select())
    iterator.update(output.clients)
    return process, output.state, source, dataset


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
    evaluator = Evaluator(process, MODEL, dataset, options)
    assert list(evaluator(state, source, is_last=False).columns()) == before
    assert list(evaluator(state, source, is_last=True).columns()) == last


def test_options_are_passed_to_the_evaluations(federation):
    process, state, source, dataset = federation
    options = Evaluation(
        clients_per_call=3, generalization="last", synthetic=(0.3, 1.0), subsample=True
    )
    values = Evaluator(process, MODEL, dataset, options, seed=7)(state, source, is_last=True).values
    pooled = PooledEvaluation(
        process, MODEL, dataset, synthetic=(0.3, 1.0), subsample=True, seed=7
    )(state, source).values
    evaluator = Evaluator(process, MODEL, dataset, Evaluation())
    local = evaluator(state, source, is_last=True).values
    assert list(values) == [*local, *pooled]
    assert MetricName("personalized", "synthetic30_test", "loss") in pooled
    for name, expected in {**local, **pooled}.items():
        np.testing.assert_allclose(values[name], expected, rtol=1e-5)


@together(
    ("options", "error", "message"),
    [
        (
            {"generalization": "allways"},
            UnknownNameError,
            "Unknown generalization 'allways'. Did you mean 'always'",
        ),
        ({"split": "train"}, UnknownNameError, "Unknown split 'train'.*'test', 'validation'"),
        ({"clients": -1}, ValueError, "clients must be a whole number of at least 0, got -1"),
        ({"synthetic": (0.5, 1.5)}, ValueError, r"synthetic must .* in \[0, 1\], got \(0.5, 1"),
    ],
)
def test_options_refuse_invalid_values(options, error, message):
    with pytest.raises(error, match=message):
        Evaluation(**options)


def test_sample_has_the_metrics_of_its_clients(federation):
    process, state, source, dataset = federation

    def evaluate(number):
        options = Evaluation(clients=number, generalization="last", clients_per_call=2)
        return Evaluator(process, MODEL, dataset, options)(state, source, is_last=True)

    all_clients, sampled = evaluate(0), evaluate(3)
    ids = sampled_clients(0, 4, 3)
    np.testing.assert_array_equal(sampled.client_ids, ids)
    np.testing.assert_array_equal(sampled.num_examples, all_clients.num_examples[ids])
    assert list(sampled.values) == list(all_clients.values)
    for name, values in sampled.values.items():
        np.testing.assert_allclose(values, all_clients.values[name][ids], rtol=1e-6)
    assert (all_clients.population, sampled.population) == (None, 4)


def test_population_counts_clients_with_examples(federation):
    process, state, source, dataset = federation
    rows, none = dataset.partition.train, np.zeros([0], np.int64)
    partition = Partition((*rows[:2], none, none), (none, none, rows[2], none), (none,) * 4)
    other = FederatedDataset(dataset.x, dataset.y, 3, partition)
    other_source = CohortDataSource(other, source.store, process.client_type, seed=0)
    options = Evaluation(split="validation", clients=4)
    found = Evaluator(process, MODEL, other, options)(state, other_source, is_last=False)
    assert (len(found.client_ids), found.population) == (4, 1)


@pytest.mark.parametrize(("examples", "rows"), [(5, 16), (70, 128), (300, 200)])
def test_evaluations_compute_the_rows_that_clients_have(examples, rows):
    """Counts the rows of a forward pass: a power of two from 16 on, but at most 200."""
    found = []

    def apply(weights, x, **options):
        found.append(x.shape[0])
        return MODEL.apply(weights, x, **options)

    data = random_examples(examples, seed=0)
    dataset = FederatedDataset.from_client_arrays([(data.x[:4], data.y[:4], data.x, data.y)], 3)
    process = tiny_process(build_local)
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    source = CohortDataSource(dataset, store, process.client_type, seed=0)
    evaluator = Evaluator(process, dataclasses.replace(MODEL, apply=apply), dataset, Evaluation())
    evaluator.on_own_examples(process.initialize(), source)
    assert set(found) == {rows}


def test_sampled_clients_are_a_uniform_function_of_the_seed():
    ids = sampled_clients(3, 1000, 100)
    assert np.all(np.diff(ids) > 0) and ids[0] >= 0 and ids[-1] < 1000
    np.testing.assert_array_equal(ids, sampled_clients(3, 1000, 100))
    assert list(sampled_clients(4, 1000, 100)) != list(ids)
    counts = np.zeros(5)
    for seed in range(500):
        counts[sampled_clients(seed, 5, 2)] += 1
    np.testing.assert_allclose(
        counts / 500, 0.4, atol=0.07
    )  # The tolerance is more than three deviations.
    np.testing.assert_array_equal(sampled_clients(3, 7, 7), np.arange(7))


def test_too_large_sample_is_refused(federation):
    process, _, _, dataset = federation
    with pytest.raises(ValueError, match="clients=5 are to be evaluated, .* has only 4 that train"):
        Evaluator(process, MODEL, dataset, Evaluation(clients=5))

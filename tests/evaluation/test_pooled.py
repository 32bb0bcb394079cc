"""Tests the evaluation of models on other clients' examples."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.evaluation.sources import after_a_round, dataset_of, scores, source_of
from tests.federation import IMAGE_SHAPE, local_sgd, random_examples, tiny_model, tiny_process
from tests.marks import together
from tff_pfl.algorithms import build_ditto, build_fedavg
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import Evaluation, MetricName, PooledEvaluation, drawn_clients, to_text
from tff_pfl.local import examples_type
from tff_pfl.models import Model, Task

FRACTIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
TEST_SIZES = (7, 0, 4, 1, 5, 3)
NUM_CLIENTS = len(TEST_SIZES)


class TestDrawnClients:
    @pytest.mark.parametrize("num_clients", [1, 7, 20])
    def test_smaller_fractions_draw_subsets_of_distinct_clients(self, num_clients):
        for client_id in range(num_clients):
            drawn = [drawn_clients(3, client_id, num_clients, c) for c in FRACTIONS]
            assert drawn[0].tolist() == [client_id]
            assert drawn[-1].tolist() == list(range(num_clients))
            for smaller, larger in itertools.pairwise(drawn):
                assert set(smaller) <= set(larger) and len(set(larger)) == len(larger)

    @together(
        ("fraction", "num_clients", "others"),
        [
            (0.5, 1, 0),
            (0.5, 6, 3),
            (0.25, 3, 1),
            (0.24, 3, 0),
            (0.29, 51, 15),  # In floating-point numbers, 0.29 * 50 is less than 14.5.
        ],
    )
    def test_number_of_others_is_rounded_half_up(self, fraction, num_clients, others):
        assert len(drawn_clients(0, 0, num_clients, fraction)) == 1 + others

    def test_draws_are_functions_of_seed_and_client(self):
        def draws(seed):
            return [tuple(drawn_clients(seed, i, 30, 0.5)) for i in range(30)]

        first = draws(0)
        assert draws(0) == first
        assert not set(draws(1)) & set(first)
        assert len(set(first)) == 30


# The following tests compare a network's metrics with a direct computation.


@pytest.fixture(scope="module")
def dataset():
    return dataset_of(
        (random_examples(5 + i, seed=i), random_examples(n, seed=10 + i))
        for i, n in enumerate(TEST_SIZES)
    )


MODEL = tiny_model()


@pytest.fixture(scope="module")
def trained(dataset):
    """Returns `(process, server state, source)` of Ditto after a round of half of the clients."""
    process = tiny_process(build_ditto)
    source = source_of(process, dataset)
    return process, after_a_round(process, source, 3), source


def pooled(trained, dataset, batch_size=1000, seed=0, **options):
    process, state, source = trained
    evaluation = PooledEvaluation(
        process, dataset, Evaluation(**options), seed, batch_size=batch_size
    )
    return to_text(evaluation(state, source, np.arange(NUM_CLIENTS)).values)


@pytest.mark.thorough
def test_empty_pool_is_refused(trained, dataset):
    with pytest.raises(ValueError, match="The pool is empty: no client has validation examples"):
        pooled(trained, dataset, split="validation")


@pytest.mark.thorough
def test_means_are_over_the_examples_of_drawn_clients(trained, dataset):
    process, state, source = trained
    columns = pooled(trained, dataset, synthetic=(0.5, 0.125, 0.07, 0.0), seed=4)
    models = {
        "personalized": process.personalize(state, source.select_clients(range(NUM_CLIENTS))),
        "global": [state.algorithm.weights] * NUM_CLIENTS,
    }
    pools = {"generalization_test": 1.0}
    pools |= {"synthetic50_test": 0.5, "synthetic12.5_test": 0.125}
    pools |= {"synthetic7_test": 0.07, "synthetic0_test": 0.0}
    assert list(columns) == [
        f"{model_name}/{pool}/{metric}"
        for model_name in models
        for pool in pools
        for metric in ("loss", "accuracy")
    ]
    for model_name, weights in models.items():
        for i in range(NUM_CLIENTS):
            tests = [dataset.examples(j, "test") for j in range(NUM_CLIENTS)]
            client_scores = [scores(MODEL, weights[i], test) for test in tests]
            for pool, fraction in pools.items():
                drawn = drawn_clients(4, i, NUM_CLIENTS, fraction)
                for metric in ("loss", "accuracy"):
                    values = np.concatenate([client_scores[j][metric] for j in drawn])
                    mean = values.mean() if TEST_SIZES[i] else np.nan
                    found = columns[f"{model_name}/{pool}/{metric}"][i]
                    assert found == pytest.approx(mean, rel=1e-5, nan_ok=True)


# The following tests use a model whose loss identifies the averaged examples.


def telltale_model() -> Model:
    """Returns a model with a loss of 2^i for the example with pixel i, for all weights."""

    def init(seed):
        return collections.OrderedDict(layer=collections.OrderedDict(w=tf.zeros([1])))

    def apply(weights, x, training=False, seed=None):
        return 2.0 ** tf.cast(x[:, 0, 0, 0], tf.float32) + weights["layer"]["w"] * 0.0

    return Model(init, apply, task=Task("outputs", lambda y, outputs: outputs), name="telltale")


@pytest.fixture(scope="module")
def telltale():
    """Returns `pools(name, sizes, **options)`, the examples in the means of `telltale_model`."""
    x = np.arange(sum(TEST_SIZES), dtype=np.uint8)[:, np.newaxis, np.newaxis, np.newaxis]
    parts = np.split(x, np.cumsum(TEST_SIZES)[:-1])
    dataset = FederatedDataset.from_client_arrays(
        [(part[:0], np.zeros(0, int), part, np.zeros(len(part), int)) for part in parts], 1
    )
    model = telltale_model()
    process = build_fedavg(model, examples_type((1, 1, 1)), local_sgd())
    source, state = source_of(process, dataset), process.initialize()

    def pools(name, sizes=None, seed=0, **options):
        evaluation = PooledEvaluation(process, dataset, Evaluation(**options), seed)
        found = evaluation(state, source, np.arange(NUM_CLIENTS)).values
        means = found[MetricName("global", name, "loss")]
        return [binary_digits(mean * size) for mean, size in zip(means, sizes, strict=True)]

    return pools


def binary_digits(value) -> set[int]:
    if np.isnan(value):
        return set()
    assert value == pytest.approx(round(value), rel=1e-9)
    return {i for i in range(64) if round(value) >> i & 1}


def numbers(*clients) -> set[int]:
    """Returns the numbers of all examples of some clients."""
    ends = np.cumsum(TEST_SIZES)
    return {n for i in clients for n in range(ends[i] - TEST_SIZES[i], ends[i])}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pool", "fraction"),
    [("generalization_test", 1.0), ("synthetic50_test", 0.5), ("synthetic0_test", 0.0)],
)
def test_subsample_has_as_many_distinct_examples_of_drawn_clients(telltale, pool, fraction):
    drawn = telltale(pool, TEST_SIZES, subsample=True, synthetic=(0.0, 0.5), seed=2)
    assert [len(d) for d in drawn] == list(TEST_SIZES)  # A set has no duplicates.
    for i, d in enumerate(drawn):
        assert d <= numbers(*drawn_clients(2, i, NUM_CLIENTS, fraction))
    # They are not only the client's own examples.
    assert any(d != numbers(i) for i, d in enumerate(drawn)) == (fraction > 0)


@pytest.mark.thorough
def test_subsample_is_a_function_of_the_seed(telltale):
    first, again, other = (
        telltale("generalization_test", TEST_SIZES, subsample=True, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


@pytest.mark.thorough
def test_padding_and_batch_sizes_do_not_change_the_result(trained, dataset):
    process, state, source = trained
    columns = pooled(trained, dataset)
    fixed = build_ditto(MODEL, examples_type(IMAGE_SHAPE, capacity=12), local_sgd(), seed=1)
    padded = CohortDataSource(dataset, source.store, fixed.client_type, seed=0, capacity=12)
    for found in (
        pooled((fixed, state, padded), dataset),
        pooled(trained, dataset, batch_size=7, clients_per_call=4),
    ):
        assert found.keys() == columns.keys()
        for name, values in found.items():
            np.testing.assert_allclose(values, columns[name], rtol=1e-5)


def test_fractions_must_be_distinct(trained, dataset):
    with pytest.raises(ValueError, match="Two fractions are too close .*: synthetic50_test"):
        pooled(trained, dataset, synthetic=(0.5, 0.5000001))

"""Tests the evaluation of models on other clients' examples."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import (
    IMAGE_SHAPE,
    local_sgd,
    random_examples,
    tiny_model,
    tiny_process,
)
from tests.marks import together
from tff_pfl.algorithms import build_ditto, build_fedavg
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import (
    Evaluation,
    MetricName,
    PooledEvaluation,
    drawn_clients,
    summarize,
    to_text,
)
from tff_pfl.local import examples_type
from tff_pfl.models import Model, Task

FRACTIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
TEST_SIZES = (7, 0, 4, 1, 5, 3)
NUM_CLIENTS = len(TEST_SIZES)


class TestDrawnClients:
    @pytest.mark.parametrize("num_clients", [1, 7])
    def test_draw_has_the_client_and_distinct_others(self, num_clients):
        for fraction in FRACTIONS:
            for client_id in (0, num_clients // 2, num_clients - 1):
                drawn = drawn_clients(5, client_id, num_clients, fraction)
                assert client_id in drawn
                assert set(drawn) <= set(range(num_clients))
                assert len(set(drawn)) == len(drawn)

    def test_fractions_0_and_1_draw_none_and_all_others(self):
        for client_id in range(5):
            assert drawn_clients(0, client_id, 5, 0.0).tolist() == [client_id]
            assert drawn_clients(0, client_id, 5, 1.0).tolist() == [0, 1, 2, 3, 4]

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

        np.random.seed(1)
        first = draws(0)
        np.random.seed(2)
        assert draws(0) == first
        assert not set(draws(1)) & set(first)
        assert len(set(first)) == 30

    def test_draws_of_smaller_fractions_are_subsets(self):
        for client_id in range(20):
            drawn = [set(drawn_clients(3, client_id, 20, c)) for c in sorted(FRACTIONS)]
            assert all(a < b for a, b in zip(drawn, drawn[1:], strict=False))


# The following tests compare a network's metrics with a direct computation.


@pytest.fixture(scope="module")
def dataset():
    pairs = [
        (random_examples(5 + i, seed=i), random_examples(n, seed=10 + i))
        for i, n in enumerate(TEST_SIZES)
    ]
    return FederatedDataset.from_client_arrays([(a.x, a.y, b.x, b.y) for a, b in pairs], 3)


MODEL = tiny_model()


def source_of(process, dataset):
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    return CohortDataSource(dataset, store, process.client_type, seed=0)


@pytest.fixture(scope="module")
def trained(dataset):
    """Returns `(process, server state, source)` of Ditto after a round of half of the clients."""
    process = tiny_process(build_ditto)
    source = source_of(process, dataset)
    iterator = source.iterator()
    output = process.next(process.initialize(), iterator.select(3))
    iterator.update(output.clients)
    return process, output.state, source


def pooled(trained, dataset, batch_size=1000, seed=0, **options):
    process, state, source = trained
    evaluation = PooledEvaluation(
        process, dataset, Evaluation(**options), seed, batch_size=batch_size
    )
    return to_text(evaluation(state, source, np.arange(NUM_CLIENTS)).values)


@pytest.fixture(scope="module")
def columns(trained, dataset):
    """Returns the metrics for the fractions 0, 0.5 and 1."""
    return pooled(trained, dataset, synthetic=(0, 0.5, 1))


def scores(dataset, weights):
    """Yields loss and accuracy of each client's test examples, with Keras's functions."""
    for client_id in range(NUM_CLIENTS):
        test = dataset.examples(client_id, "test")
        logits = MODEL.apply(weights, test.x)
        loss = tf.keras.losses.sparse_categorical_crossentropy(test.y, logits, from_logits=True)
        accuracy = tf.keras.metrics.sparse_categorical_accuracy(test.y, logits)
        yield {"loss": loss.numpy(), "accuracy": accuracy.numpy()}


@pytest.mark.thorough
def test_empty_pool_is_refused(trained, dataset):
    with pytest.raises(ValueError, match="The pool is empty: no client has validation examples"):
        pooled(trained, dataset, split="validation")


@pytest.mark.thorough
def test_means_are_over_the_examples_of_drawn_clients(trained, dataset):
    process, state, source = trained
    columns = pooled(trained, dataset, synthetic=(0.5, 0.2, 0.0), seed=4)
    models = {
        "personalized": process.personalize(state, source.select_clients(range(NUM_CLIENTS))),
        "global": [state.algorithm.weights] * NUM_CLIENTS,
    }
    pools = {"generalization_test": 1.0}
    pools |= {"synthetic50_test": 0.5, "synthetic20_test": 0.2, "synthetic0_test": 0.0}
    assert list(columns) == [
        f"{model_name}/{pool}/{metric}"
        for model_name in models
        for pool in pools
        for metric in ("loss", "accuracy")
    ]
    for model_name, weights in models.items():
        for i in range(NUM_CLIENTS):
            client_scores = list(scores(dataset, weights[i]))
            for pool, fraction in pools.items():
                drawn = drawn_clients(4, i, NUM_CLIENTS, fraction)
                for metric in ("loss", "accuracy"):
                    values = np.concatenate([client_scores[j][metric] for j in drawn])
                    mean = values.mean() if TEST_SIZES[i] else np.nan
                    found = columns[f"{model_name}/{pool}/{metric}"][i]
                    assert found == pytest.approx(mean, rel=1e-5, nan_ok=True)


@pytest.mark.thorough
def test_fraction_1_equals_the_generalization(columns):
    for model_name in ("personalized", "global"):
        for metric in ("loss", "accuracy"):
            np.testing.assert_array_equal(
                columns[f"{model_name}/synthetic100_test/{metric}"],
                columns[f"{model_name}/generalization_test/{metric}"],
            )


@pytest.mark.thorough
def test_tables_and_statistics_have_the_clients_with_test_examples(trained, dataset):
    process, state, source = trained
    evaluation = PooledEvaluation(process, dataset, Evaluation(synthetic=(0, 0.5)))
    clients = evaluation(state, source, np.arange(NUM_CLIENTS))
    means, columns = summarize(clients), clients.columns(undefined=None)
    for name in clients.values:
        values = columns[str(name)].tolist()
        assert [value is None for value in values] == [size == 0 for size in TEST_SIZES]
        mean = np.mean([value for value in values if value is not None])
        assert means[name._replace(statistic="mean")] == pytest.approx(mean)


@pytest.mark.thorough
def test_batch_sizes_do_not_change_the_result(trained, dataset, columns):
    options = {"batch_size": 7, "clients_per_call": 4}
    found = pooled(trained, dataset, synthetic=(0, 0.5, 1), **options)
    assert list(found) == list(columns)
    for name, values in columns.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)


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


class TestSubsample:
    @pytest.mark.thorough
    def test_subsample_has_the_clients_number_of_distinct_examples(self, telltale):
        drawn = telltale("generalization_test", TEST_SIZES, subsample=True)
        assert [len(d) for d in drawn] == list(TEST_SIZES)  # A set has no duplicates.
        # They are not only the client's own examples.
        assert any(d != numbers(i) for i, d in enumerate(drawn))

    @pytest.mark.thorough
    def test_subsample_of_a_synthetic_pool_is_from_drawn_clients(self, telltale):
        drawn = telltale(
            "synthetic50_test", TEST_SIZES, subsample=True, synthetic=(0.0, 0.5), seed=2
        )
        for i, d in enumerate(drawn):
            assert len(d) == TEST_SIZES[i]
            assert d <= numbers(*drawn_clients(2, i, NUM_CLIENTS, 0.5))
        own_pools = telltale("synthetic0_test", TEST_SIZES, subsample=True, synthetic=(0.0,))
        assert own_pools == [numbers(i) for i in range(NUM_CLIENTS)]

    @pytest.mark.thorough
    def test_subsample_is_a_function_of_the_seed(self, telltale):
        first, again, other = (
            telltale("generalization_test", TEST_SIZES, subsample=True, seed=seed)
            for seed in (0, 0, 1)
        )
        assert first == again
        assert first != other


@pytest.mark.thorough
def test_padding_does_not_change_the_result(trained, dataset, columns):
    process, state, source = trained
    fixed = build_ditto(MODEL, examples_type(IMAGE_SHAPE, capacity=12), local_sgd(), seed=1)
    store = source.store
    padded = CohortDataSource(dataset, store, fixed.client_type, seed=0, capacity=12)
    found = pooled((fixed, state, padded), dataset, synthetic=(0, 0.5, 1))
    assert found.keys() == columns.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, columns[name], rtol=1e-6)


def test_fractions_must_be_distinct(trained, dataset):
    with pytest.raises(ValueError, match="Two fractions are too close .*: synthetic50_test"):
        pooled(trained, dataset, synthetic=(0.5, 0.5000001))


@pytest.mark.thorough
def test_names_contain_the_fractions(trained, dataset):
    columns = pooled(trained, dataset, synthetic=(0.07, 0.125, 1 / 3))
    pools = list(dict.fromkeys(name.split("/")[1] for name in columns))
    assert pools == [
        "generalization_test",
        "synthetic7_test",
        "synthetic12.5_test",
        "synthetic33.3333_test",
    ]

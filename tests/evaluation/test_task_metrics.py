"""Tests evaluations by metrics of sums: clients of both classes, of one, without examples."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

import tff_pfl
from tests.evaluation.sources import source_of
from tests.federation import local_sgd
from tff_pfl.arguments.quantities import Quantities, Quantity
from tff_pfl.evaluation import Evaluation, Evaluator, MetricName, summarize
from tff_pfl.experiment import EarlyStop, EvaluatedRound

DIM = 3
TEST_SIZES, ONE_CLASS = (9, 5, 1, 0, 8), 1


def network():
    return tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(DIM,), name="head")])


@pytest.fixture(scope="module")
def evaluated():
    """Returns the metrics of each client, and the models and examples by which to check them."""
    rng = np.random.default_rng(0)
    clients = []
    for client_id, size in enumerate(TEST_SIZES):
        x = rng.normal(size=(6 + size, DIM)).astype(np.float32)
        y = (x[:, 0] + rng.normal(size=len(x)) > 0).astype(np.int32)
        if client_id == ONE_CLASS:
            y[:] = 1
        clients.append((x[:6], y[:6], x[6:], y[6:]))
    dataset = tff_pfl.FederatedDataset.from_client_arrays(clients)

    def labels(y, outputs, weight):
        return tf.reduce_sum(tf.one_hot(y, 2) * weight[:, tf.newaxis], axis=0)

    shares = tff_pfl.Metric(labels, lambda s: s / tf.reduce_sum(s), -1, parts=("no", "yes"))
    task = tff_pfl.TASKS["binary"]().with_metrics({"share": shares})
    model = tff_pfl.from_keras(network, input_shape=(DIM,), task=task)
    algorithm = tff_pfl.make("ditto", model, local_sgd())
    process = tff_pfl.compose(algorithm, dataset.examples_type)
    source, state = source_of(process, dataset), process.initialize()
    options = Evaluation(generalization="always", synthetic=())
    found = Evaluator(process, dataset, options)(state, source, is_last=True)
    weights = process.personalize(state, source.select_clients(range(len(TEST_SIZES))))
    return found, model, weights, clients


@pytest.mark.thorough
def test_auc_of_clients_and_of_pools_equals_scikit_learn(evaluated):
    found, model, weights, clients = evaluated
    pool_x, pool_y = (np.concatenate([client[i] for client in clients]) for i in (2, 3))
    for client_id, (_, _, x, y) in enumerate(clients):
        for pool, inputs, labels in (("local_test", x, y), ("generalization_test", pool_x, pool_y)):
            value = found.values[MetricName("personalized", pool, "auc")][client_id]
            if not len(y) or len(set(labels.tolist())) < 2:
                assert np.isnan(value)
            else:
                scores = model.apply(weights[client_id], inputs)[:, 0]
                assert value == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)


@pytest.mark.thorough
def test_parts_of_metrics_are_evaluated_one_by_one(evaluated):
    """Compares the share of labels 1 with NumPy, of clients and of the pool."""
    found, *_, clients = evaluated
    own, pooled = (
        found.values[MetricName("personalized", pool, "share_yes")]
        for pool in ("local_test", "generalization_test")
    )
    labels = [client[3] for client in clients]
    expected = [y.mean() if len(y) else np.nan for y in labels]
    np.testing.assert_allclose(own, expected, rtol=1e-6)
    share = np.concatenate(labels).mean()
    of_pool = [share if len(y) else np.nan for y in labels]  # a client without examples has none
    np.testing.assert_allclose(pooled, of_pool, rtol=1e-6)
    metrics = summarize(found)
    name = MetricName("personalized", "local_test", "share_yes", "worst_5_percent")
    assert metrics[name] == pytest.approx(np.nanmax(expected))  # less is better
    assert metrics[name._replace(quantity="num_undefined_share_no", statistic="")] == 0


@pytest.mark.thorough
def test_clients_without_tokens_are_left_out():
    """The rows of the second and of the fourth client have a mask of zeros."""
    ids = np.array([[1, 2], [0, 0], [2, 0], [1, 1], [2, 2]], np.int32)
    mask = np.array([[1, 1], [0, 0], [1, 0], [0, 0], [1, 1]], np.int32)
    x, y = np.eye(5, dtype=np.float32), {"ids": ids, "mask": mask}
    clients = [(x[[i]], {key: own[[i]] for key, own in y.items()}) * 2 for i in range(5)]
    dataset = tff_pfl.FederatedDataset.from_client_arrays(clients)

    def tokens():
        layers = tf.keras.layers
        return tf.keras.Sequential(
            [layers.Dense(6, input_shape=(5,), name="head"), layers.Reshape((2, 3))]
        )

    model = tff_pfl.from_keras(tokens, input_shape=(5,), task="sequence")
    process = tff_pfl.compose(tff_pfl.make("fedavg", model, local_sgd()), dataset.examples_type)
    options = Evaluation(generalization="always", synthetic=(0.0,))
    evaluator = Evaluator(process, dataset, options)
    found = evaluator(process.initialize(), source_of(process, dataset), is_last=True)
    values, metrics = dict(found.values), summarize(found)
    for quantity in ("loss", "accuracy", "perplexity"):
        for pool in ("local_test", "synthetic0_test"):
            name = MetricName("global", pool, quantity)
            assert found.is_defined(name).tolist() == [True, False, True, False, True]
            mean = metrics[name._replace(statistic="mean")]
            assert mean == pytest.approx(np.mean(values[name][[0, 2, 4]]))
        pool = MetricName("global", "generalization_test", quantity)
        assert np.isfinite(values[pool]).all() and found.is_defined(pool).all()
    assert metrics[MetricName("global", "local_test", "num_nonfinite")] == 0


def test_metrics_follow_their_stated_direction(evaluated):
    name = MetricName("personalized", "local_test", "f1")
    found = evaluated[0]
    best = name._replace(statistic="best_5_percent")
    values = found.values[name][found.is_defined(name)]
    assert summarize(found)[best] == values.max()
    other = found._replace(quantities=Quantities({"f1": Quantity("f1", -1)}))
    assert summarize(other)[best] == values.min() < values.max()


def test_early_stop_follows_the_stated_direction():
    stop = EarlyStop(1, metric="personalized/score")
    falling = [EvaluatedRound(i, {stop.watched: 1.0 / i}) for i in (1, 2)]
    assert stop.reason(falling) is not None
    assert stop.reason(falling, quantities=Quantities({"score": Quantity("score", -1)})) is None


def test_subsample_refuses_metrics_of_sums():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, DIM)).astype(np.float32), np.array([0, 1, 1, 0], np.int32)
    dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, y, x, y)] * 2)
    model = tff_pfl.from_keras(network, input_shape=(DIM,), task=tff_pfl.TASKS["binary"]())
    process = tff_pfl.compose(tff_pfl.make("fedavg", model, local_sgd()), dataset.examples_type)
    options = Evaluation(generalization="last", subsample=True)
    with pytest.raises(ValueError, match="the metric 'auc' is not a mean over examples"):
        Evaluator(process, dataset, options)

"""Tests the map over clients' models, and evaluations of all clients on their own examples."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.evaluation.sources import after_a_round, dataset_of, scores, source_of
from tests.federation import EXAMPLES_TYPE, local_sgd, random_examples, tiny_model, tiny_process
from tests.marks import slow, together
from tff_pfl.algorithms import build_ditto, make
from tff_pfl.evaluation import (
    Evaluation,
    Evaluator,
    fine_tuned,
    for_each_client,
    locally_trained,
    map_models,
    to_text,
)
from tff_pfl.evaluation.each_client import at_once, evaluated_rows, outputs_of_row
from tff_pfl.evaluation.evaluator import measured, metrics_of
from tff_pfl.templates import compose

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
MODEL = tiny_model()
TRAIN_SIZES, TEST_SIZES = (6, 9, 5), (7, 0, 1)


@pytest.fixture(scope="module")
def dataset():
    sizes = enumerate(zip(TRAIN_SIZES, TEST_SIZES, strict=True))
    return dataset_of(
        (random_examples(train, seed=i), random_examples(test, seed=10 + i))
        for i, (train, test) in sizes
    )


@pytest.fixture(scope="module")
def ditto(dataset):
    """Returns `(process, server state, source)` after a round of two clients."""
    process = tiny_process(build_ditto)
    source = source_of(process, dataset)
    return process, after_a_round(process, source, 2), source


@together(
    ("rows", "classes", "at_a_time"),
    [(200, 10, 25), (16, 50_000, 20), (200, 50_000, 1), (8, 10**9, 1)],
)
def test_models_of_many_outputs_are_evaluated_few_at_a_time(rows, classes, at_a_time):
    """Bounds the outputs of a call by 2^24, 64 MiB: 16 * 50,000 * 20 are 16 million."""
    known = dataclasses.replace(MODEL, num_classes=classes)
    traced = dataclasses.replace(
        MODEL,
        num_classes=None,
        apply=lambda weights, x, **_: tf.zeros([tf.shape(x)[0], classes // 2, 2]),
    )
    process = tiny_process(build_ditto)
    for model in (known, traced):
        algorithm = dataclasses.replace(process.algorithm, evaluated_model=model)
        process = dataclasses.replace(process, algorithm=algorithm)
        assert at_once(25, rows * outputs_of_row(process)) == at_a_time


@together(
    ("sizes", "rows"),
    [([12] * 9, 16), ([17] * 9, 32), ([200] * 3, 200), ([12] * 9 + [900], 64), ([0], 200)],
)
def test_forward_passes_have_rows_for_typical_clients(sizes, rows):
    """Adds 64 to the rows of a pass: the fourth takes 24 * 128 with 64 rows, 14 * 264 with 200."""
    source = types.SimpleNamespace(sizes={"validation": np.zeros(2), "test": np.array(sizes)}.get)
    assert evaluated_rows(source, "validation", "test") == rows


@pytest.mark.thorough
@pytest.mark.parametrize(("at_a_time", "sizes"), [(2, [2, 1]), slow(25, [3])])
def test_map_covers_both_models_of_every_client(ditto, dataset, at_a_time, sizes):
    """Compares metrics with Keras's, and counts the clients whose states are read at a time."""
    process, state, source = ditto
    source.store.read.clear()
    measure = for_each_client(process, measured, at_a_time=at_a_time)
    results = measure(state, source, np.arange(3), batch_size=3)
    columns = metrics_of(results, "local", dataset, "test", np.arange(3)).columns()
    assert source.store.read == sizes
    np.testing.assert_array_equal(columns["client_id"], [0, 1, 2])
    np.testing.assert_array_equal(columns["num_examples"], TEST_SIZES)
    personal = process.personalize(state, source.select_clients(range(3)))
    for client_id in (0, 2):
        test = dataset.examples(client_id, "test")
        for name, weights in (
            ("personalized", personal[client_id]),
            ("global", state.algorithm.weights),
        ):
            for metric, values in scores(MODEL, weights, test).items():
                found = columns[f"{name}/local_test/{metric}"][client_id]
                assert found == pytest.approx(values.mean(), rel=1e-5)
    # A client with no test examples has no accuracy.
    assert np.isnan(columns["personalized/local_test/accuracy"][1])


@pytest.mark.thorough
def test_names_contain_the_split(ditto, dataset):
    process, state, source = ditto
    evaluator = Evaluator(process, dataset, Evaluation())
    columns = evaluator.on_own_examples(state, source, "train").columns()
    loss = scores(MODEL, state.algorithm.weights, dataset.examples(1, "train"))["loss"]
    assert columns["global/local_train/loss"][1] == pytest.approx(loss.mean(), rel=1e-5)
    np.testing.assert_array_equal(columns["num_examples"], TRAIN_SIZES)


def test_computation_of_a_map_has_the_documented_type(ditto):
    process, *_ = ditto
    evaluation = map_models(process, lambda model, weights, examples: examples.size)
    parameter = evaluation.type_signature.parameter
    tff.test.assert_types_identical(parameter[0], process.initialize.type_signature.result)
    tff.test.assert_types_identical(parameter[1].member.client, process.client_type)
    result = evaluation.type_signature.result
    assert result.placement is tff.CLIENTS
    assert tff.structure.name_list(result.member) == ["personalized", "global"]


@pytest.mark.thorough
def test_further_models_are_evaluated_on_own_and_pooled_examples(dataset):
    """Compares each model with the personalized model of its algorithm."""
    fedavg = make("fedavg", MODEL, local_sgd())
    further = {
        "locally_trained": locally_trained(fedavg, local_sgd()),
        "fine_tuned": fine_tuned(fedavg, local_sgd(), epochs=2),
    }
    process = compose(fedavg, EXAMPLES_TYPE, further_models=further)
    assert dataclasses.replace(process).further_models == process.further_models
    source, state = source_of(process, dataset), process.initialize()
    options = Evaluation(generalization="always", synthetic=(0.0,))
    found = Evaluator(process, dataset, options)(state, source, is_last=True)
    columns = to_text(found.values)
    models = ["personalized", *further, "global"]
    assert list(dict.fromkeys(name.split("/")[0] for name in columns)) == models
    for name, make_models in process.further_models.items():
        weights = make_models(state, source.select_clients(range(3)))
        for client_id in (0, 2):
            test = dataset.examples(client_id, "test")
            loss = scores(MODEL, weights[client_id], test)["loss"].mean()
            for pool in ("local_test", "synthetic0_test"):
                assert columns[f"{name}/{pool}/loss"][client_id] == pytest.approx(loss, rel=1e-5)
    losses = [columns[f"{name}/local_test/loss"][0] for name in models[:-1]]
    assert len(set(losses)) == 3

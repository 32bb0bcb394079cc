"""Tests the outputs of every client's models on each of its examples."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.evaluation.sources import after_a_round, source_of
from tests.federation import local_sgd, random_examples, tiny_model, tiny_process
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.algorithms import build_ditto, make
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import Evaluation, Evaluator
from tff_pfl.local import examples_type
from tff_pfl.templates import compose

MODEL = tiny_model()
MANY = 300  # more than a forward pass takes
CONTEXTS = {
    "vectorized": lambda: runtime.create_graph_context(vectorize="always"),
    "loop": lambda: runtime.create_graph_context(vectorize="never"),
    "stock": runtime.create_cpp_context,
}


@pytest.fixture(scope="module")
def dataset():
    """Makes three clients whose many, 0 and 1 test examples are rows out of order."""
    x, y, _ = random_examples(24 + MANY + 1)
    rows = np.random.default_rng(0).permutation(len(y))
    train, test, none = np.split(rows[:24], [6, 15]), rows[24:], np.zeros([0], np.int64)
    return FederatedDataset(x, y, 3, Partition(train, [none] * 3, (test[:MANY], none, test[MANY:])))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("context", "capacity"),
    [slow("vectorized", "cohort"), slow("loop", None), ("loop", "cohort"), slow("stock", None)],
)
def test_predictions_are_those_of_the_models_on_the_clients_own_examples(
    dataset, context, capacity
):
    options = Evaluation(clients_per_call=2)
    process = tiny_process(build_ditto)
    source = source_of(process, dataset, capacity=capacity)
    with tff.framework.get_context_stack().install(CONTEXTS[context]()):
        state = after_a_round(process, source)
        personal = process.personalize(state, source.select_clients(range(3)))
        found = Evaluator(process, dataset, options).predictions(state, source)
    np.testing.assert_array_equal(found.client_ids, [0] * MANY + [2])
    rows = np.concatenate([dataset.partition.test[client_id] for client_id in range(3)])
    np.testing.assert_array_equal(found.examples, rows)
    np.testing.assert_array_equal(found.labels, dataset.y[rows])
    shared = state.algorithm.weights
    for name, weights in {"personalized": personal, "global": [shared] * 3}.items():
        logits = np.concatenate(
            [MODEL.apply(weights[i], dataset.examples(i, "test").x) for i in range(3)]
        )
        highest = logits.max(axis=1, keepdims=True)
        sums = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
        outputs, loss = found.models[name]
        np.testing.assert_allclose(outputs, logits, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(loss, sums - logits[range(MANY + 1), found.labels], atol=1e-5)


def test_outputs_of_any_shape_have_columns(dataset):
    """Checks outputs that are a structure, of a model without a global one."""

    def apply(weights, x, **options):
        logits = MODEL.apply(weights, x, **options)
        return {"logits": logits, "pairs": tf.stack([logits, logits + 1], axis=2)}

    model = dataclasses.replace(
        MODEL, apply=apply, task=MODEL.task.of(lambda outputs: outputs["logits"])
    )
    process = compose(make("local", model, local_sgd()), examples_type((4, 4, 1)))
    evaluator = Evaluator(process, dataset.of([0, 1]), Evaluation())
    found = evaluator.predictions(process.initialize(), source_of(process, dataset.of([0, 1])))
    columns = found.columns()
    assert {name: column.shape for name, column in columns.items()} == {
        "client_id": (MANY,),
        "example": (MANY,),
        "label": (MANY,),
        "personalized/logits": (MANY, 3),
        "personalized/pairs": (MANY, 3, 2),
        "personalized_loss": (MANY,),
    }
    named = found._replace(class_names=np.array(["ant", "bee", "cat"])).columns()["label"]
    assert named.categories.tolist() == ["ant", "bee", "cat"]
    assert named.codes.tolist() == found.labels.tolist()
    logits, pairs = columns["personalized/logits"], columns["personalized/pairs"]
    np.testing.assert_array_equal(pairs, np.stack([logits, logits + 1], axis=2))

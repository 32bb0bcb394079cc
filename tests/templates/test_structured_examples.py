"""Tests training and evaluation on structures of inputs and labels, against NumPy."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.algorithms import make
from tff_pfl.arguments.kinds import KindError
from tff_pfl.attacks import label_flip
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.deployment import (
    compose_global_evaluation,
    compose_stateless_view,
    compose_with_sequence_data,
)
from tff_pfl.drivers import ExamplesDataSource
from tff_pfl.evaluation import Evaluation, Evaluator
from tff_pfl.local import AUGMENTATIONS, LocalTraining
from tff_pfl.models import Model, Task
from tff_pfl.templates import compose
from tff_pfl.tracing.errors import BlockTracingError, TemplateError

LARGE = 1 << 24  # float32 cannot hold the next integer
RATE = 0.125
CONTEXTS = {
    "vectorized": lambda: runtime.create_graph_context(vectorize="always"),
    "loop": lambda: runtime.create_graph_context(vectorize="never"),
    "stock": runtime.create_cpp_context,
}


def rows(size, seed):
    """Returns inputs and labels: a sequence of two numbers, and a number."""
    rng = np.random.default_rng([size, seed])
    x = {"id": LARGE + rng.integers(0, 9, size), "vector": rng.normal(size=(size, 2))}
    return x, (rng.normal(size=(size, 2)).astype(np.float32), rng.integers(0, 9, size, np.uint8))


CLIENTS = [(*rows(5, 0), *rows(3, 1)), (*rows(2, 2), *rows(1, 3)), ([], [], *rows(2, 4))]
DATASET = FederatedDataset.from_client_arrays(CLIENTS)


def features(x):
    """Returns the remainder of the id, which rounding would change, beside the vector."""
    return np.column_stack([x["id"] % 2, x["vector"]]).astype(np.float32)


def targets(y):
    return np.column_stack([y[0], y[1]]).astype(np.float32)


def init(seed):
    kernel = tf.reshape(tf.range(9, dtype=tf.float32) / 8 + seed, [3, 3])
    return collections.OrderedDict(linear=collections.OrderedDict(kernel=kernel))


def apply(weights, x, *, training, seed=None):
    del training, seed
    own = tf.cast(x["id"] % 2, tf.float32)[:, tf.newaxis]
    inputs = tf.concat([own, tf.cast(x["vector"], tf.float32)], axis=1)
    outputs = inputs @ weights["linear"]["kernel"]
    return {"sequence": outputs[:, :2], "number": outputs[:, 2]}


def squares(y, outputs):
    sequence = tf.reduce_sum((outputs["sequence"] - y[0]) ** 2, axis=1)
    return sequence + (outputs["number"] - tf.cast(y[1], tf.float32)) ** 2


MODEL = Model(init, apply, Task("squares", squares), name="several")
LOCAL = LocalTraining(tff.learning.optimizers.build_sgdm(RATE), batch_size=8)
PROCESS = compose(make("fedavg", MODEL, LOCAL), DATASET.examples_type)


def losses_of(kernel, x, y):
    return ((features(x) @ kernel - targets(y)) ** 2).sum(axis=1)


def source_of(process, **options):
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    return CohortDataSource(DATASET, store, process.client_type, seed=0, **options)


def round_of_numpy(kernel):
    """Returns the mean of the clients' models after a step, weighted by their examples."""
    sums, number = 0, 0
    for x, y, *_ in CLIENTS[:2]:
        a, size = features(x), len(x["id"])
        gradient = 2 * a.T @ (a @ kernel - targets(y)) / size
        sums, number = sums + size * (kernel - RATE * gradient), number + size
    return sums / number


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("context", "capacity"),
    [("vectorized", "cohort"), slow("loop", None), slow("stock", "cohort")],
)
def test_fedavg_on_structures_equals_numpy(context, capacity):
    with tff.framework.get_context_stack().install(CONTEXTS[context]()):
        source = source_of(PROCESS, capacity=capacity)
        state = PROCESS.initialize()
        kernel = np.asarray(PROCESS.global_weights(state)["linear"]["kernel"])
        output = PROCESS.next(state, source.select_clients(range(3)))
        found = PROCESS.global_weights(output.state)["linear"]["kernel"]
        np.testing.assert_allclose(found, round_of_numpy(kernel), rtol=1e-5)
        assert output.metrics["train"]["num_empty"] == 1
        sums = sum(losses_of(kernel, *client[:2]).sum() for client in CLIENTS[:2])
        np.testing.assert_allclose(output.metrics["train"]["loss"], sums / 7, rtol=1e-5)


@pytest.fixture
def evaluated(clients_in_a_loop):
    """Returns the state of the server at the start, its kernel and the source of clients."""
    state = PROCESS.initialize()
    return state, np.asarray(PROCESS.global_weights(state)["linear"]["kernel"]), source_of(PROCESS)


@pytest.mark.thorough
def test_predictions_and_pooled_losses_equal_numpy(evaluated):
    state, kernel, source = evaluated
    evaluator = Evaluator(PROCESS, DATASET, Evaluation(generalization="always"))
    predictions = evaluator.predictions(state, source)
    columns = predictions.columns()
    tests = [client[2:] for client in CLIENTS]
    losses = [losses_of(kernel, x, y) for x, y in tests]
    np.testing.assert_allclose(columns["personalized_loss"], np.concatenate(losses), rtol=1e-5)
    np.testing.assert_array_equal(columns["label/1"], np.concatenate([y[1] for _, y in tests]))
    number = np.concatenate([features(x) @ kernel for x, _ in tests])[:, 2]
    np.testing.assert_allclose(columns["global/number"], number, rtol=1e-5)
    pooled = evaluator(state, source, is_last=True).values
    found = {str(name): values for name, values in pooled.items()}
    np.testing.assert_allclose(
        found["global/generalization_test/loss"], np.concatenate(losses).mean(), rtol=1e-5
    )


@pytest.mark.slow
def test_views_and_sequences_of_structures_train_alike(clients_in_a_loop):
    view = compose_stateless_view(PROCESS)
    source = ExamplesDataSource(source_of(PROCESS, capacity="cohort"))
    tensors = view.next(view.initialize(), source.iterator().select())
    sequences = ExamplesDataSource(source_of(PROCESS), as_sequences=True).iterator()
    process = compose_with_sequence_data(PROCESS, sequences.federated_type.member.element, 6)
    view = compose_stateless_view(process)
    data = sequences.select()
    output = view.next(view.initialize(), data)
    kernels = [out.state.algorithm.weights["linear"]["kernel"] for out in (tensors, output)]
    np.testing.assert_allclose(*kernels, rtol=1e-6)
    evaluation = compose_global_evaluation(MODEL, sequences.federated_type.member)
    metrics = evaluation.next(evaluation.initialize(), data).metrics["client_work"]["eval"]
    assert metrics["total_rounds_metrics"]["num_examples"] == 7


def test_what_needs_classes_or_images_says_so():
    with pytest.raises(TemplateError, match="'label_flip' needs class labels"):
        attacked = label_flip(make("fedavg", MODEL, LOCAL), num_classes=2, client_ids=[0])
        compose(attacked, DATASET.examples_type)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE), augment=AUGMENTATIONS["crop_and_flip"]()
    )
    with pytest.raises((KindError, BlockTracingError), match="needs one array of images"):
        compose(make("fedavg", MODEL, local), DATASET.examples_type)


def test_client_type_must_fit_every_array():
    x, y = rows(3, 0)
    others = FederatedDataset.from_client_arrays([(x, (y[0], y[1].astype(np.int32)), [], [])])
    store = ClientStateStore(PROCESS.initialize_clients, PROCESS.client_state_type)
    with pytest.raises(TypeError, match=r"labels of <float32\[2\],uint8>, but .*int32"):
        CohortDataSource(others, store, PROCESS.client_type, seed=0)

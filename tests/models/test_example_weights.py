"""Tests weights of examples and of classes against NumPy, scikit-learn, Keras and repeated rows."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from sklearn import metrics as sklearn

import tff_pfl
from tests.federation import last, make_client, run_rounds, tiny_model
from tests.marks import together
from tests.models.test_tasks import linear, measured, outputs
from tff_pfl.attacks import label_flip
from tff_pfl.local import ClientContext, Examples, LocalTraining, exact_gradient
from tff_pfl.models import TASKS, Mean, Metric, Task, keras_metrics
from tff_pfl.models.example_weights import with_weights
from tff_pfl.testing import EagerProcess
from tff_pfl.tracing.errors import BlockTracingError, LabelsError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 3)).astype(np.float32)
REPEATS = RNG.integers(0, 4, 23)
# A half and a quarter of these add up without rounding, as AUC of few examples needs.
WEIGHTS = (REPEATS / 4).astype(np.float32)
CLASSES, BITS = RNG.integers(0, 4, 23), RNG.integers(0, 2, 23)
TARGETS = RNG.normal(size=(23, 2)).astype(np.float32)
TASK_CASES = [
    ("classification", {"top": (2,)}, 4, CLASSES),
    ("binary", {}, 1, BITS),
    ("multi_label", {}, 2, (TARGETS > 0).astype(np.int32)),
    ("regression", {}, 2, TARGETS),
    ("autoencoding", {}, 3, X),
]


@pytest.mark.thorough
@together(("name", "options", "num_outputs", "y"), TASK_CASES)
def test_whole_weights_are_repeated_rows_and_zeros_are_missing_ones(name, options, num_outputs, y):
    task = TASKS[name](**options).with_metrics(
        {} if name == "classification" else keras_metrics([tf.keras.metrics.MeanSquaredError()])
    )
    model = linear(task, num_outputs)
    repeated = np.repeat(np.arange(23), REPEATS)
    found = measured(model, X, with_weights(y, REPEATS.astype(np.float32)))
    assert found == pytest.approx(measured(model, X[repeated], y[repeated]), rel=1e-6)
    weighted = exact_gradient(model, model.init(0), examples(X, with_weights(y, WEIGHTS)))
    plain = exact_gradient(model, model.init(0), examples(X[repeated], y[repeated]))
    kernels = (it.gradient["head"]["kernel"] for it in (weighted, plain))
    np.testing.assert_allclose(*kernels, rtol=1e-5, atol=1e-6)


def test_area_of_weights_whose_sums_are_rounded():
    model, weights = linear(TASKS["binary"](), 1), RNG.uniform(0, 3, 23).astype(np.float32)
    expected = sklearn.roc_auc_score(BITS, outputs(model, X)[:, 0], sample_weight=weights)
    found = measured(model, X, with_weights(BITS, weights))
    assert found["auc"] == pytest.approx(expected, abs=5e-3)


def examples(x, y):
    x, y = tf.nest.map_structure(tf.constant, (x, y))
    return Examples(x, y, tf.constant(len(x)))


def trained(model, data, **options):
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    local = LocalTraining(sgd, epochs=3, batch_size=64, **options)
    context = ClientContext(*map(tf.constant, (0, 0, [1, 2])))
    return local.train(model, model.init(0), data, context).weights["head"]["kernel"].numpy()


def test_training_against_numpy_and_repeated_rows():
    model = linear(TASKS["regression"](), 2)
    expected = model.init(0)["head"]["kernel"].numpy()
    for _ in range(3):
        residual = (X @ expected - TARGETS) * WEIGHTS[:, np.newaxis]
        expected = expected - 0.1 * X.T @ residual / WEIGHTS.sum()
    found = trained(model, examples(X, with_weights(TARGETS, WEIGHTS)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    repeated = np.repeat(np.arange(23), REPEATS)
    others = trained(model, examples(X[repeated], TARGETS[repeated]))
    np.testing.assert_allclose(found, others, atol=1e-6)


def test_weights_multiply_those_of_the_task():
    task = Task(
        "errors",
        lambda y, z: tf.square(y - z[:, 0]),
        {"error": Metric(values=lambda y, z: tf.abs(y - z[:, 0]), direction=-1)},
        example_weight=lambda y: tf.where(y > 0.0, 2.0, 1.0),
    )
    model, y = linear(task, 1), TARGETS[:, 0]
    weights = WEIGHTS * np.where(y > 0, 2, 1)
    expected = np.average(np.abs(y - outputs(model, X)[:, 0]), weights=weights)
    assert measured(model, X, with_weights(y, WEIGHTS))["error"] == pytest.approx(expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "num_outputs", "y"), [("classification", 4, CLASSES), ("binary", 1, BITS)]
)
def test_class_weights_against_keras(name, num_outputs, y):
    of_class = [1.0, 5.0, 0.0, 0.5][: y.max() + 1]
    model = linear(TASKS[name]().with_class_weights(of_class), num_outputs)
    loss = {
        "classification": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "binary": tf.keras.losses.BinaryCrossentropy(from_logits=True),
    }[name]
    network = tf.keras.Sequential([tf.keras.layers.Dense(num_outputs, use_bias=False)])
    network.build((None, 3))
    network.compile(tf.keras.optimizers.SGD(0.1), loss)
    network.set_weights([model.init(0)["head"]["kernel"]])
    by_class = dict(enumerate(of_class))
    for step in range(3):
        expected = network.train_on_batch(X, y[:, np.newaxis], class_weight=by_class)
        if not step:
            assert measured(model, X, y)["loss"] == pytest.approx(expected, rel=1e-6)
    found = trained(model, examples(X, y))
    np.testing.assert_allclose(found, network.get_weights()[0], rtol=1e-5, atol=1e-6)
    plain = measured(linear(TASKS[name](), num_outputs), X, y)
    assert measured(model, X, y) | {"loss": plain["loss"]} == plain


def test_impossible_class_weights_are_refused():
    for refused, message in (
        (lambda: TASKS["regression"]().with_class_weights([1, 2]), "'regression' has no class"),
        (lambda: TASKS["binary"]().with_class_weights([1, -2]), "weights must be"),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
    for name, num_outputs in (("classification", 4), ("binary", 1)):
        model = linear(TASKS[name]().with_class_weights([1, 2, 3]), num_outputs)
        with pytest.raises(LabelsError, match="3 weights for [24] classes"):
            measured(model, X, BITS)


ROWS = np.array([2, 2, 0, 4, 2, 2])  # of each client, whose sizes keep their ratio
IMAGES = RNG.uniform(0, 255, [3, 6, 4, 4, 1]).astype(np.float32)
LABELS = RNG.integers(0, 3, [3, 6])
WEIGHTED = [(x, y, ROWS, x, y, ROWS) for x, y in zip(IMAGES, LABELS, strict=True)]
REPEATED = [(x.repeat(ROWS, 0), y.repeat(ROWS)) * 2 for x, y in zip(IMAGES, LABELS, strict=True)]


def in_full_batches(method):
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    return tff_pfl.make(method, tiny_model(), LocalTraining(sgd, epochs=2, batch_size=64))


def flipped(name):
    return label_flip(in_full_batches(name), num_classes=3, client_ids=[1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "method"),
    [(in_full_batches, "fedrod"), (in_full_batches, "fedpac"), (flipped, "fedavg")],
)
def test_methods_that_read_labels_follow_weights(make, method):
    models = []
    for clients in (WEIGHTED, REPEATED):
        dataset = tff_pfl.FederatedDataset.from_client_arrays(clients, 3)
        process = EagerProcess(make(method))
        clients = [make_client(process, i, dataset.examples(i)) for i in range(3)]
        models.append(process.personalize(*last(run_rounds(process, clients, [(0, 1, 2)] * 2))))
    for one, other in zip(*map(tf.nest.flatten, models), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_labels_of_weighted_examples():
    dataset = tff_pfl.FederatedDataset.from_client_arrays(WEIGHTED, 3)

    def share_of(ones):
        def client_work(weights, state, examples, context):
            share = tf.reduce_mean(tf.cast(ones(examples), tf.float32))
            return tff_pfl.ClientOutput(
                state=state, upload=weights, metrics={"share": Mean(share, tf.constant(1.0))}
            )

        return tff_pfl.averaging(tiny_model().init, client_work, lambda weights, *_: weights)

    process = EagerProcess(share_of(lambda examples: examples.labels == 1))
    client = make_client(process, 0, dataset.examples(0))
    metrics = process.next(process.initialize(), [client]).metrics["train"]
    assert metrics["share"] == pytest.approx(np.mean(LABELS[0] == 1))
    with pytest.raises(
        BlockTracingError, match="'sample_weight': batch.labels and examples.labels"
    ):
        tff_pfl.compose(share_of(lambda examples: examples.y + 1), dataset.examples_type)


@pytest.mark.slow
def test_runs_follow_weights(tmp_path):
    results = []
    for name, clients in (("weighted", WEIGHTED), ("repeated", REPEATED)):
        dataset = tff_pfl.FederatedDataset.from_client_arrays(clients, 3)
        methods = {"FedAvg": in_full_batches("fedavg")}
        evaluation = tff_pfl.Evaluation(generalization="last")
        options = {"rounds": 2, "folder": tmp_path / name, "evaluation": evaluation}
        compared = tff_pfl.compare(dataset, methods, **options)
        columns = ("loss", "personalized/generalization_test/loss")
        results.append(np.stack([compared.clients(column) for column in columns]))
    np.testing.assert_allclose(*results, rtol=1e-5)

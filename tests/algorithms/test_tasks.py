"""Tests what each method can train: which tasks, several inputs, which layers."""

import numpy as np
import pytest
import tensorflow as tf

import tff_pfl
from tests.federation import local_sgd, make_client, run_rounds
from tests.marks import slow, together
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.local import Examples, evaluate
from tff_pfl.testing import EagerProcess
from tff_pfl.tracing.errors import LabelsError

layers = tf.keras.layers
METHODS = sorted(ALGORITHMS.keys())
NEEDS_CLASS_LOGITS = {
    *("fd", "fedas", "fedgen", "fedgh", "fedkd", "fedlc", "fedntd", "fedpac", "fedproto"),
    *("fedrod", "fedtgp", "fml", "gpfl", "knn_per", "splitgp"),
}
NEEDS_LINEAR_HEAD = {
    *("fedas", "fedcp", "feddbe", "fedgen", "fedgh", "fedkd", "fedpac", "fedphp", "fedproto"),
    *("fedrod", "fedtgp", "gpfl", "knn_per", "moon"),
}
NO_BATCH_NORMALIZATION = {
    *("fedmgda_plus", "fedpg", "fedrod", "pfedhn", "pfedhn_pc", "plgu_ghn", "s_fedpg", "splitgp"),
}
NEEDS_PROBABILITIES = {"fedem"}
WITHOUT_PROBABILITIES = ("regression", "autoencoding")
FEDERATION = {"num_clients": 3, "clients_per_round": 3}
# FedBABU is evaluated without fine-tuning, of which one epoch need not lower the loss.
OPTIONS = {"fedfomo": {"num_models": 2}, "fedbabu": {"fine_tune_epochs": 0}}
SIZES = (5, 8, 6)
TOKENS, TIME = 5, 4


def made(name, model, **options):
    options = FEDERATION | OPTIONS.get(name, {}) | options
    return make(name, model, local_sgd(0.05), **options)


def normalized(hidden):
    """Returns the outputs of a normalisation, as FedBN needs one."""
    return layers.ReLU()(layers.LayerNormalization(name="norm")(hidden))


def mlp(task="classification", outputs=2, norm=layers.LayerNormalization, last=()):
    def network():
        hidden = [layers.Dense(6, name="hidden"), norm(name="norm")]
        head = layers.Dense(outputs, name="head")
        return tf.keras.Sequential([tf.keras.Input((3,)), *hidden, head, *last])

    return tff_pfl.from_keras(network, input_shape=(3,), task=task)


def sequence():
    def network():
        tokens = tf.keras.Input((TIME,), dtype=tf.int32)
        hidden = normalized(layers.Embedding(TOKENS, 4, name="embedding")(tokens))
        return tf.keras.Model(tokens, layers.Dense(TOKENS, name="head")(hidden))

    return tff_pfl.from_keras(network, input_shape=(TIME,), input_dtype=tf.int32, task="sequence")


def regression():
    def network():
        item = tf.keras.Input((), dtype=tf.int32, name="item")
        age = tf.keras.Input((1,), name="age")
        features = tf.concat([layers.Embedding(TOKENS, 4, name="items")(item), age], axis=1)
        hidden = normalized(layers.Dense(6, name="hidden")(features))
        return tf.keras.Model(
            {"item": item, "age": age}, layers.Dense(1, name="head")(hidden)[:, 0]
        )

    return tff_pfl.from_keras(
        network,
        input_shape={"item": (), "age": (1,)},
        input_dtype={"item": tf.int32, "age": tf.float32},
        task="regression",
    )


MODELS = {
    "binary": lambda: mlp("binary", 1),
    "multi_label": lambda: mlp("multi_label"),
    "regression": regression,
    "sequence": sequence,
    "autoencoding": lambda: mlp("autoencoding", 3),
}


def assert_refused_by(names, model, message, others=METHODS):
    """Asserts that exactly these methods refuse the model; `{}` in the message is their name."""
    for name in others:
        if name in names:
            with pytest.raises(ValueError, match=message.format(name)):
                made(name, model)
        else:
            made(name, model)


@pytest.mark.thorough
@together("task", MODELS)
def test_methods_that_need_class_logits_say_so_at_the_start(task):
    # The constant outputs of `constant` have no autoencoding.
    others = [name for name in METHODS if (task, name) != ("autoencoding", "constant")]
    others = sorted(set(others) - (NEEDS_LINEAR_HEAD - NEEDS_CLASS_LOGITS))
    if task in WITHOUT_PROBABILITIES:
        others = sorted(set(others) - NEEDS_PROBABILITIES)
    message = f"^{{}} needs a class label .* is '{task}'"
    assert_refused_by(NEEDS_CLASS_LOGITS, MODELS[task](), message, others)


@pytest.mark.parametrize("task", WITHOUT_PROBABILITIES)
def test_methods_that_mix_probabilities_say_so_at_the_start(task):
    message = f"^{{}} mixes probabilities, but .* is '{task}'. Choose another method"
    assert_refused_by(NEEDS_PROBABILITIES, MODELS[task](), message, NEEDS_PROBABILITIES)


def test_methods_that_need_a_linear_head_say_so_at_the_start():
    model = mlp(last=[layers.ReLU()])
    assert_refused_by(NEEDS_LINEAR_HEAD, model, "^{} needs the inputs of the last layer")


def test_methods_that_cannot_train_batch_normalisation_say_so_at_the_start():
    model = mlp(norm=layers.BatchNormalization)
    message = "{}.* cannot train the batch normalisation"
    assert_refused_by(NO_BATCH_NORMALIZATION, model, message)
    for name, options in (("ifca", {"averaging": "gradients"}), ("lg_fedavg", {"alternate": True})):
        with pytest.raises(ValueError, match=message.format(name)):
            made(name, model, **options)


@pytest.mark.thorough
@together(
    ("name", "shape", "dtype"),
    [("fedavg", (), np.float32), ("fedpac", (4,), np.int32), ("fedrod", (4,), np.int32)],
)
def test_labels_that_are_no_classes_are_refused_at_the_start(name, shape, dtype):
    y = np.zeros((6, *shape), dtype)
    client = (np.zeros((6, 3), np.float32), y) * 2
    dataset = tff_pfl.FederatedDataset.from_client_arrays([client, client])
    with pytest.raises(LabelsError, match="^The task needs one int32 or int64 label for each"):
        tff_pfl.compose(made(name, mlp()), dataset.examples_type)


def test_labels_that_are_no_sequences_are_refused_at_the_start():
    examples_type = tff_pfl.examples_type((TIME,), np.int32)
    with pytest.raises(LabelsError, match="one int32 or int64 label for each token of an"):
        tff_pfl.compose(made("fedavg", sequence()), examples_type)


@together(
    ("x", "message"),
    [
        (
            np.ones([6, 4]),
            r"has input_shape=\(3,\), but an input of the data has the shape \(4,\)\. Pass",
        ),
        ({"a": np.ones(6), "b": np.ones([6, 3])}, r"the shape \{'a': \(\), 'b': \(3,\)\}"),
        (np.ones([6, 3]), r"^Labels of shape \(\) .* of this shape, .* have the shape \(2,\)"),
    ],
)
def test_models_that_do_not_fit_the_data_are_refused_at_the_start(x, message):
    dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, np.zeros(6)) * 2])
    with pytest.raises(ValueError, match=message):
        tff_pfl.compose(made("fedavg", mlp("binary")), dataset.examples_type)


def ratings(client_id, size):
    rng = np.random.default_rng(client_id)
    age = rng.uniform(-1, 1, (size, 1)).astype(np.float32)
    item = rng.integers(0, TOKENS, size).astype(np.int32)
    return {"age": age, "item": item}, (4 + item + (1 + client_id) * age[:, 0]).astype(np.float32)


def texts(client_id, size):
    """Returns counts upwards from 1, in steps that differ by client; 0 is padding at the end."""
    start = np.random.default_rng(client_id).integers(0, 4, (size, 1))
    counts = (start + (1 + client_id) * np.arange(TIME + 1)) % (TOKENS - 1) + 1
    counts[: size // 2, -1] = 0
    return counts[:, :-1].astype(np.int32), counts[:, 1:].astype(np.int32)


DATA = {"regression": ratings, "sequence": texts}
FAST = {("regression", "fedrep"), ("sequence", "apfl")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "name"),
    [
        (task, name) if (task, name) in FAST else slow(task, name)
        for task in DATA
        for name in METHODS
        # Constant outputs are as good before the first round.
        if name not in NEEDS_CLASS_LOGITS | NEEDS_LINEAR_HEAD | {"constant"}
        and not (task in WITHOUT_PROBABILITIES and name in NEEDS_PROBABILITIES)
    ],
)
def test_a_round_lowers_the_loss_of_the_clients_models(task, name):
    algorithm = made(name, MODELS[task]())
    model, process = algorithm.evaluated_model, EagerProcess(algorithm)
    examples = [Examples(*DATA[task](i, size), np.int32(size)) for i, size in enumerate(SIZES)]
    clients = [make_client(process, i, own) for i, own in enumerate(examples)]
    state = process.initialize()
    before = loss(model, process.personalize(state, clients), examples)
    *_, (state, clients) = run_rounds(process, clients, [(0, 1, 2)] * 2, state)
    after = loss(model, process.personalize(state, clients), examples)
    assert after < before


def loss(model, weights, examples):
    return np.mean(
        [
            evaluate(model, own, data, batch_size=4)["loss"].mean
            for own, data in zip(weights, examples, strict=True)
        ]
    )

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
NEEDS_CLASS_LOGITS = {"fedpac", "fedrod", "splitgp"}
# Its constant outputs are not of the model, and as good before the first round.
CONSTANT = {"constant"}
NEEDS_LINEAR_HEAD = {"fedpac", "fedrod"}
NO_BATCH_NORMALIZATION = {
    *NEEDS_CLASS_LOGITS,
    *("fedmgda_plus", "fedpg", "pfedhn", "pfedhn_pc", "plgu_ghn", "s_fedpg"),
}
FEDERATION = {"num_clients": 3, "clients_per_round": 3}
# FedBABU is evaluated without fine-tuning, of which one epoch need not lower the loss.
OPTIONS = {"fedfomo": {"num_models": 2}, "fedbabu": {"fine_tune_epochs": 0}}
SIZES = (5, 8, 6)
TOKENS, TIME = 5, 4


def made(name, model):
    return make(name, model, local_sgd(0.05), **FEDERATION, **OPTIONS.get(name, {}))


def normalized(hidden):
    """Returns the outputs of a normalisation, as FedBN needs one."""
    return layers.ReLU()(layers.LayerNormalization(name="norm")(hidden))


def sequential(*middle, outputs=2):
    network = [layers.Dense(6, name="hidden"), *middle, layers.Dense(outputs, name="head")]
    return tf.keras.Sequential([tf.keras.Input((3,)), *network])


def sequence():
    tokens = tf.keras.Input((TIME,), dtype=tf.int32)
    hidden = normalized(layers.Embedding(TOKENS, 4, name="embedding")(tokens))
    return tf.keras.Model(tokens, layers.Dense(TOKENS, name="head")(hidden))


def two_inputs():
    item = tf.keras.Input((), dtype=tf.int32, name="item")
    age = tf.keras.Input((1,), name="age")
    features = tf.concat([layers.Embedding(TOKENS, 4, name="items")(item), age], axis=1)
    rating = layers.Dense(1, name="head")(normalized(layers.Dense(6, name="hidden")(features)))
    return tf.keras.Model({"item": item, "age": age}, rating[:, 0])


def task_of(name):
    return tff_pfl.TASKS[name]()


MODELS = {
    "binary": lambda: tff_pfl.from_keras(
        lambda: sequential(layers.LayerNormalization(name="norm"), outputs=1),
        input_shape=(3,),
        task=task_of("binary"),
    ),
    "multi_label": lambda: tff_pfl.from_keras(
        lambda: sequential(layers.LayerNormalization(name="norm")),
        input_shape=(3,),
        task=task_of("multi_label"),
    ),
    "regression": lambda: tff_pfl.from_keras(
        two_inputs,
        input_shape={"item": (), "age": (1,)},
        input_dtype={"item": tf.int32, "age": tf.float32},
        task=task_of("regression"),
    ),
    "sequence": lambda: tff_pfl.from_keras(
        sequence, input_shape=(TIME,), input_dtype=tf.int32, task=task_of("sequence")
    ),
    "autoencoding": lambda: tff_pfl.from_keras(
        lambda: sequential(layers.LayerNormalization(name="norm"), outputs=3),
        input_shape=(3,),
        task=task_of("autoencoding"),
    ),
}


@pytest.mark.thorough
@together("task", MODELS)
def test_methods_that_need_class_logits_say_so_at_the_start(task):
    model = MODELS[task]()
    for name in METHODS:
        if name in NEEDS_CLASS_LOGITS:
            with pytest.raises(ValueError, match=f"^{name} needs a class label .* is '{task}'"):
                made(name, model)
        elif name not in CONSTANT or task != "autoencoding":
            made(name, model)


def test_methods_that_need_a_linear_head_say_so_at_the_start():
    def network():
        return tf.keras.Sequential(
            [sequential(layers.LayerNormalization(name="norm")), layers.ReLU()]
        )

    model = tff_pfl.from_keras(network, input_shape=(3,))
    for name in METHODS:
        if name in NEEDS_LINEAR_HEAD:
            with pytest.raises(ValueError, match=f"^{name} needs the inputs of the last layer"):
                made(name, model)
        else:
            made(name, model)


def test_methods_that_cannot_train_batch_normalisation_say_so_at_the_start():
    model = tff_pfl.from_keras(
        lambda: sequential(layers.BatchNormalization(name="norm")), input_shape=(3,)
    )
    for name in METHODS:
        if name in NO_BATCH_NORMALIZATION:
            with pytest.raises(ValueError, match=f"{name}.* cannot train the batch normalisation"):
                made(name, model)
        else:
            made(name, model)


@pytest.mark.thorough
@together(
    ("name", "shape", "dtype"),
    [("fedavg", (), np.float32), ("fedpac", (4,), np.int32), ("fedrod", (4,), np.int32)],
)
def test_labels_that_are_no_classes_are_refused_at_the_start(name, shape, dtype):
    model = tff_pfl.from_keras(sequential, input_shape=(3,))
    y = np.zeros((6, *shape), dtype)
    client = (np.zeros((6, 3), np.float32), y) * 2
    dataset = tff_pfl.FederatedDataset.from_client_arrays([client, client])
    with pytest.raises(LabelsError, match="^The task needs one int32 or int64 label for each"):
        tff_pfl.compose(made(name, model), dataset.examples_type)


def test_labels_that_are_no_sequences_are_refused_at_the_start():
    model = MODELS["sequence"]()
    examples_type = tff_pfl.examples_type((TIME,), np.int32)
    with pytest.raises(LabelsError, match="one int32 or int64 label for each token of an"):
        tff_pfl.compose(made("fedavg", model), examples_type)


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
    model = tff_pfl.from_keras(sequential, input_shape=(3,), task="binary")
    dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, np.zeros(6)) * 2])
    with pytest.raises(ValueError, match=message):
        tff_pfl.compose(made("fedavg", model), dataset.examples_type)


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
        if name not in NEEDS_CLASS_LOGITS | CONSTANT
    ],
)
def test_a_round_lowers_the_loss_of_the_clients_models(task, name):
    model = MODELS[task]()
    process = EagerProcess(made(name, model))
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

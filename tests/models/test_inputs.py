"""Tests models of several inputs and outputs, and integers on their way to the model."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.local import Batch, Examples, scan_batches
from tff_pfl.models import ModelSaver, Task, from_keras
from tff_pfl.models.inputs import input_specs

LARGE = (1 << 24) + 1
SHAPES = {"vector": (2,), "id": ()}
DTYPES = {"vector": np.float64, "id": np.int64}
BATCH = {"id": np.array([LARGE, LARGE + 1, 3]), "vector": np.arange(6.0).reshape(3, 2)}


def network():
    """Builds a model of two named inputs; the remainder of an id decides about a feature."""
    inputs = {
        "id": tf.keras.Input((), dtype=tf.int64, name="id"),
        "vector": tf.keras.Input((2,), name="vector"),
    }
    is_odd = tf.cast(inputs["id"] % 2, tf.float32)[:, tf.newaxis]
    features = tf.keras.layers.Concatenate()([is_odd, inputs["vector"]])
    outputs = {
        "number": tf.keras.layers.Dense(1, name="number")(features),
        "logits": tf.keras.layers.Dense(3, name="logits")(features),
    }
    return tf.keras.Model(inputs, outputs)


def loss(y, outputs):
    number = tf.square(outputs["number"][:, 0] - tf.cast(y["number"], tf.float32))
    return number + tf.nn.sparse_softmax_cross_entropy_with_logits(y["class"], outputs["logits"])


def model(**options):
    options = {
        "input_shape": SHAPES,
        "input_dtype": DTYPES,
        "task": Task("squares", loss),
    } | options
    return from_keras(network, **options)


def expected(weights, batch):
    features = np.column_stack([batch["id"] % 2, batch["vector"]])
    return {
        name: features @ weights[name]["kernel"].numpy() + weights[name]["bias"].numpy()
        for name in ("number", "logits")
    }


def test_several_inputs_and_outputs_equal_numpy():
    several = model()
    weights = several.init(1)
    outputs = several.apply(weights, BATCH)
    for name, value in expected(weights, BATCH).items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5)


def test_preprocess_gets_the_structure_in_stored_types():
    def preprocess(x):
        assert x["id"].dtype == tf.int64 and x["vector"].dtype == tf.float64
        return {"id": x["id"] + 1, "vector": tf.cast(2 * x["vector"], tf.float32)}

    several = model(preprocess=preprocess)
    weights = several.init(1)
    changed = {"id": BATCH["id"] + 1, "vector": 2 * BATCH["vector"]}
    number = several.apply(weights, BATCH)["number"]
    np.testing.assert_allclose(number, expected(weights, changed)["number"], rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_integers_reach_the_model_unrounded(dtype):
    def parity():
        x = tf.keras.Input((), dtype=dtype)
        return tf.keras.Model(x, tf.keras.layers.Dense(2)(tf.cast(x % 2, tf.float32)[:, None]))

    one = from_keras(parity, input_shape=(), input_dtype=dtype)
    weights = one.init(0)
    ids = np.array([LARGE, LARGE + 1, LARGE + 2], dtype)
    np.testing.assert_array_equal(one.apply(weights, ids), one.apply(weights, ids % 2))
    assert np.any(one.apply(weights, ids)[0] != one.apply(weights, ids)[1])


@pytest.mark.thorough
@pytest.mark.parametrize("mixed", ["x", "y"])
def test_rows_of_structures_must_not_depend_on_each_other(mixed):
    """Mixes one array of the inputs, or of the labels."""

    def preprocess(x):
        mean = tf.reduce_mean(x["vector"], axis=0) if mixed == "x" else 0.0
        return {"id": x["id"], "vector": tf.cast(x["vector"] - mean, tf.float32)}

    def mixing_loss(y, outputs):
        return loss(y, outputs) + (tf.reduce_max(y["number"]) if mixed == "y" else 0.0)

    y = {"class": tf.constant([0, 1, 1]), "number": tf.constant([0.5, 0.25, 1.0])}
    x = tf.nest.map_structure(tf.constant, BATCH)
    batch = Batch(x, y, tf.ones([3]), tf.zeros([2], tf.int32))
    sound, unsound = model(), model(preprocess=preprocess, task=Task("mixing", mixing_loss))
    assert sound.example_values(sound.init(0), batch)["loss"].shape == [3]
    with pytest.raises(ValueError, match="loss of an example .* depends on other rows"):
        unsound.example_values(unsound.init(0), batch)


def test_saved_model_takes_the_structure(tmp_path):
    several = model()
    weights = several.init(1)
    ModelSaver(several, SHAPES, DTYPES).save(weights, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    x = tf.nest.map_structure(tf.constant, BATCH)
    np.testing.assert_allclose(loaded(x)["logits"], expected(weights, BATCH)["logits"], rtol=1e-5)
    served = loaded.signatures["serving_default"]
    np.testing.assert_allclose(
        served(x_id=x["id"], x_vector=x["vector"])["number"],
        expected(weights, BATCH)["number"],
        rtol=1e-5,
    )


def test_specs_are_of_shapes_or_of_their_structure():
    assert input_specs((2, 3), np.uint8) == tf.TensorSpec([None, 2, 3], tf.uint8, "x")
    assert input_specs(((2,), {"a": ()}), tf.int32, 1) == (
        tf.TensorSpec([1, 2], tf.int32, "x_0"),
        {"a": tf.TensorSpec([1], tf.int32, "x_1_a")},
    )
    with pytest.raises(TypeError, match=r"must be a tuple, such as \(8,\), got 8"):
        input_specs(8, np.uint8)


def test_preprocess_takes_float64_as_it_is_stored():
    """Subtracts milliseconds since 1970, which float32 rounds by up to a minute, in float64."""
    start = 1.7e12
    model = from_keras(
        lambda: tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(1,), name="head")]),
        input_shape=(1,),
        input_dtype=tf.float64,
        preprocess=lambda x: tf.cast((x - start) / 1000, tf.float32),
    )
    x = start + 1000.0 * np.arange(4.0)[:, np.newaxis]
    examples = Examples(x, np.zeros(4, np.int32), np.int32(4))
    total = tf.zeros([2])

    def step(total, batch):
        return total + tf.reduce_sum(model.apply(weights, batch.x), axis=0)

    weights = model.init(0)
    total = scan_batches(step, total, examples, epochs=1, batch_size=2, seed=tf.constant([1, 2]))
    np.testing.assert_allclose(total, 6 * weights["head"]["kernel"][0], rtol=1e-5)

"""Tests of `tff_pfl.models.stateless`, through models that are nothing but dropout."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.local import Examples, scan_batches
from tff_pfl.models import from_keras
from tff_pfl.models.stateless import stateless_dropout

SEED = tf.constant([1, 2])
WIDTH = 400


def masks(*layers, shape=(WIDTH,)):
    """A pure model that returns the outputs of `layers`, side by side, for an input of ones."""

    def keras_model_fn():
        x = tf.keras.Input(shape)
        # A model needs weights: these are ones, so that they change nothing.
        scaled = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="one")
        one = scaled(tf.keras.layers.Flatten()(x)[:, :1])
        outputs = [tf.keras.layers.Flatten()(layer()(x)) * one for layer in layers]
        return tf.keras.Model(x, tf.stack(outputs, axis=1))

    # No logits, and no loss is asked for.
    model = from_keras(keras_model_fn, input_shape=shape, example_loss=tf.identity)

    def outputs(seed=SEED, training=True, batch=1):
        return model.apply(model.init(0), tf.ones([batch, *shape]), training=training, seed=seed)

    return outputs


def dropout(rate=0.5, **kwargs):
    return lambda: tf.keras.layers.Dropout(rate, **kwargs)


@pytest.fixture(scope="module")
def two():
    return masks(dropout(), dropout())


def test_masks_are_functions_of_the_seed(two):
    np.testing.assert_array_equal(two(), two())
    assert np.mean(two() == two(tf.constant([1, 3]))) < 0.7
    tf.random.set_seed(7)
    np.testing.assert_array_equal(two(), two(tf.constant([1, 2])))


def test_layers_and_rows_have_masks_of_their_own(two):
    outputs = two(batch=2).numpy()
    several = outputs.reshape([4, WIDTH]) > 0
    agreement = [np.mean(a == b) for i, a in enumerate(several) for b in several[:i]]
    # Independent fair masks agree in 400 places with mean 1/2, standard deviation 1/40.
    np.testing.assert_allclose(agreement, 0.5, atol=0.15)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_what_is_kept_is_scaled_so_that_the_mean_is_kept(rate):
    outputs = masks(dropout(rate))(batch=50).numpy()
    values = np.unique(outputs)
    np.testing.assert_allclose(values, [0.0, 1 / (1 - rate)], rtol=1e-6)
    # 20,000 draws: the standard deviation of the mean is sqrt(rate / (1 - rate) / 20,000) <= 0.007.
    np.testing.assert_allclose(outputs.mean(), 1.0, atol=0.03)


def test_it_is_off_in_evaluation_and_at_rate_zero(two):
    np.testing.assert_array_equal(two(training=False), np.ones([1, 2, WIDTH]))
    np.testing.assert_array_equal(two(training=False, seed=None), np.ones([1, 2, WIDTH]))
    np.testing.assert_array_equal(masks(dropout(0))(seed=None), np.ones([1, 1, WIDTH]))


@pytest.mark.parametrize("always", [True, 1, np.True_, lambda: tf.constant(True)])
def test_a_layer_may_say_that_its_dropout_is_always_on(always):
    class Noisy(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dropout = tf.keras.layers.Dropout(0.5)

        def call(self, inputs):
            return self.dropout(inputs, training=always() if callable(always) else always)

    outputs = masks(Noisy)
    assert 0.3 < np.mean(outputs(training=False) == 0) < 0.7


def test_training_needs_a_seed(two):
    with pytest.raises(ValueError, match="needs a seed"):
        two(seed=None)


def test_the_shape_of_the_noise_is_respected():
    shared = masks(dropout(noise_shape=(1, None)))(batch=3).numpy()
    np.testing.assert_array_equal(shared[0], shared[2])
    assert len(np.unique(shared)) == 2

    spatial = masks(lambda: tf.keras.layers.SpatialDropout1D(0.5), shape=(5, 40))().numpy()
    spatial = spatial.reshape([5, 40])
    np.testing.assert_array_equal(spatial, np.broadcast_to(spatial[0], [5, 40]))
    assert len(np.unique(spatial)) == 2


def test_keras_is_left_as_it_was():
    ordinary = tf.keras.layers.Dropout(0.5)
    with pytest.raises(ZeroDivisionError), stateless_dropout(SEED):
        np.testing.assert_array_equal(*(dropped(ordinary, SEED) for _ in range(2)))
        raise ZeroDivisionError
    assert np.any(dropped(ordinary) != dropped(ordinary))


def dropped(layer, seed=None):
    x = tf.ones([WIDTH])
    if seed is None:
        return layer(x, training=True).numpy()
    with stateless_dropout(seed):
        return layer(x, training=True).numpy()


def test_every_batch_of_a_scan_has_another_mask(two):
    def step(carry, batch):
        count, outputs = carry
        row = tf.one_hot(count, 4)[:, tf.newaxis]
        return count + 1, outputs + row * two(batch.seed)[0, 0]

    examples = Examples(tf.zeros([4, 1]), tf.zeros([4], tf.int32), tf.constant(4))
    carry = (0, tf.zeros([4, WIDTH]))
    _, outputs = scan_batches(step, carry, examples, epochs=2, batch_size=2, seed=SEED)
    several = outputs.numpy() > 0
    agreement = [np.mean(a == b) for i, a in enumerate(several) for b in several[:i]]
    np.testing.assert_allclose(agreement, 0.5, atol=0.15)

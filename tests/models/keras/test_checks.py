"""Tests that Keras models that cannot become pure are refused."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tests.models.keras.test_adapter import layers, mlp, pure, sequential
from tff_pfl.arguments.kinds import KindError
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.models import TASKS, from_keras


class Unseeded(tf.keras.initializers.Initializer):
    def __call__(self, shape, dtype=None, **kwargs):
        return tf.random.normal(shape, dtype=dtype)


def drawn_by_numpy(shape, dtype):
    return np.random.default_rng().normal(size=shape).astype(np.float32)


class Truncated(tf.keras.initializers.Initializer):
    """An initializer that ignores its seed."""

    def __init__(self, seed=None):
        self.seed = seed

    def __call__(self, shape, dtype=None, **kwargs):
        return tf.random.truncated_normal(shape, dtype=dtype)

    def get_config(self):
        return {"seed": self.seed}


class Counting(tf.keras.Model):
    """A model that counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)
        self.head = layers.Dense(3)

    def call(self, x):
        self.calls.assign_add(1.0)
        return self.head(x)


def ending_in(*makers):
    return lambda: tf.keras.Sequential([tf.keras.Input((4,)), *[make() for make in makers]])


class Penalised(layers.Dense):
    """A layer that adds a loss of its outputs when it is called."""

    def __init__(self, **options):
        super().__init__(4, **options)
        self.use_constraint = True  # Keras does not use this attribute.

    def call(self, inputs):
        outputs = super().call(inputs)
        self.add_loss(tf.reduce_sum(tf.square(outputs)))
        return outputs


def two_heads():
    x = tf.keras.Input((4,))
    return tf.keras.Model(x, [layers.Dense(3, name=name)(x) for name in "ab"])


def compiled():
    model = mlp()
    model.compile("adam", "mse", metrics=["accuracy"])
    return model


def pretrained():
    model = tf.keras.Sequential([layers.Dense(3, input_shape=(4,))])
    model.set_weights([np.ones([4, 3]), np.zeros(3)])
    return model


def twins():
    towers = [tf.keras.Sequential([layers.Dense(2, name="a", input_shape=(4,))]) for _ in "ab"]
    x = tf.keras.Input((4,))
    return tf.keras.Model(x, layers.Add()([tower(x) for tower in towers]))


@pytest.mark.thorough
@together(
    ("keras_model_fn", "message"),
    [
        (ending_in(ending_in(lambda: layers.Dense(3, "softmax"))), "probabilities"),
        (sequential(lambda: layers.GaussianNoise(0.1)), "gaussian_noise.*dropout"),
        (ending_in(lambda: layers.Dense(3, "sigmoid")), "probabilities.*Remove the sigmoid"),
        (two_heads, r"of shape \[\(3,\), \(3,\)\] for each example.*another task"),
        (
            ending_in(lambda: layers.Reshape((2, 2, 1)), lambda: layers.Conv2D(3, 1)),
            r"of shape \(2, 2, 3\) for each example.*Flatten or pool.*another task",
        ),
        (ending_in(lambda: layers.Dense(3, trainable=False)), "no weights that are trained"),
        (Counting, "assigned a value when the model is built or called"),
        (lambda: layers.Dense(3), "tf.keras.Model, got Dense"),
        (
            sequential(lambda: layers.Dense(4, kernel_initializer=drawn_by_numpy)),
            "dense/kernel.*tf.keras.initializers",
        ),
        (
            sequential(lambda: layers.Dense(4, kernel_initializer=Unseeded())),
            "by Unseeded, which draws other numbers.*Give it an argument `seed`",
        ),
        (
            sequential(lambda: layers.Dense(4, kernel_initializer=Truncated())),
            "'TruncatedNormal' draws random numbers, which the round's seed",
        ),
        (
            ending_in(
                lambda: layers.Reshape((4, 1)),
                lambda: layers.LSTM(2, recurrent_dropout=0.5),
                lambda: layers.Dense(4),
            ),
            "instead of the dropout and recurrent_dropout",
        ),
        (
            sequential(lambda: layers.Dense(4, activity_regularizer="l2")),
            "'dense' has its own loss.*kernel_regularizer",
        ),
        (sequential(lambda: Penalised(name="own")), "'own' has its own loss"),
        (
            sequential(lambda: layers.Dense(4, bias_constraint="non_neg")),
            "'dense/bias:0' has a constraint",
        ),
        (pretrained, "'dense/kernel:0' is assigned a value.*set_weights.*starting_from"),
        (compiled, r"not weights of the model.*compile\(\).*random layers .*augment"),
        (twins, "'kernel' of layer 'a' exists 2 times"),
    ],
)
def test_from_keras_refuses_impure_models(keras_model_fn, message):
    with pytest.raises(ValueError) as refused:
        pure(keras_model_fn)
    assert re.search(message, str(refused.value))


class AlwaysTraining(tf.keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, layers.Dense(3)

    def call(self, inputs):
        return self.head(self.layer(inputs, training=True))


def always_training(layer):
    inputs = tf.keras.Input([4])
    return tf.keras.Model(inputs, layers.Dense(3)(layer(inputs, training=True)))


@pytest.mark.parametrize("keras_model", [AlwaysTraining, always_training])
@pytest.mark.parametrize("layer", [lambda: layers.Dropout(0.5), layers.BatchNormalization])
def test_layers_that_train_in_evaluation_are_refused(keras_model, layer):
    with pytest.raises(ValueError, match=r"with\s+training=True"):
        pure(lambda: keras_model(layer()))


LOOKUP = functools.partial(layers.IntegerLookup, vocabulary=[10, 20])


def test_from_keras_refuses_tables_and_other_variables():
    variable, message = tf.Variable(2.0), "^preprocess or a layer uses a table, or a variable"
    for preprocess in (LOOKUP(), lambda x: variable * x):
        with pytest.raises(ValueError, match=message):
            from_keras(mlp, input_shape=(4,), preprocess=preprocess)
    with pytest.raises(ValueError, match="^preprocess or a layer uses a table"):
        pure(ending_in(LOOKUP, lambda: layers.Dense(3)))


def test_default_task_needs_two_logits():
    one_logit = ending_in(lambda: layers.Dense(1))
    with pytest.raises(ValueError, match="one number for each example.*TASKS\\['binary'\\]"):
        pure(one_logit)
    assert pure(one_logit, task=TASKS["binary"]()).num_classes is None


def test_task_is_a_name_or_a_task():
    one_logit = ending_in(lambda: layers.Dense(1))
    assert pure(one_logit, task="regression").task.name == "regression"
    with pytest.raises(UnknownNameError, match="'regresion'"):
        pure(one_logit, task="regresion")
    with pytest.raises(KindError, match="^task must be a Task or a name of one, got <function"):
        pure(one_logit, task=TASKS["regression"])


def test_input_shape_is_of_stored_inputs():
    """Passes the shape after `preprocess` in place of the shape before it."""
    message = r"^preprocess fails on a batch of type float32\[1,4\], .* as stored.*TypeError: "
    with pytest.raises(ValueError, match=message) as refused:
        from_keras(mlp, input_shape=(4,), preprocess=lambda x: x["weekday"])
    assert isinstance(refused.value.__cause__, TypeError)


def test_from_keras_refuses_built_models():
    for given, kind in ((mlp(), "Sequential"), ("mlp", "str")):
        with pytest.raises(ValueError, match=rf"not a {kind}: from_keras\(network, ...\), not"):
            from_keras(given, input_shape=(4,))
    built_before = mlp()
    with pytest.raises(ValueError, match="'body/kernel:0', .* existed before the call"):
        from_keras(lambda: built_before, input_shape=(4,))


def test_apply_refuses_a_model_of_an_earlier_call():
    model = from_keras(functools.cache(mlp), input_shape=(4,))
    with pytest.raises(ValueError, match="with new layers, at every call"):
        model.apply(model.init(0), np.zeros([1, 4]))


def test_apply_refuses_a_model_with_other_layers():
    for depths in map(iter, [(1, 2), (2, 1)]):

        def network_of_next_depth(depths=depths):
            return sequential(*[lambda: layers.Dense(4)] * next(depths))()

        model = from_keras(network_of_next_depth, input_shape=(4,))
        with pytest.raises(ValueError, match="with other layers.*with new layers, at every call"):
            model.apply(model.init(0), np.zeros([1, 4]))

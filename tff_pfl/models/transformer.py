"""Builds small transformers for sequences of tokens."""

import tensorflow as tf

from tff_pfl.arguments.ranges import takes, whole


@takes(vocabulary=whole(2), width=whole(1), depth=whole(1), heads=whole(1), prompts=whole(0))
def transformer(
    image_shape,
    num_classes,
    *,
    vocabulary=10000,
    width=64,
    depth=2,
    heads=4,
    causal=False,
    per_token=False,
    prompts=0,
) -> tf.keras.Model:
    """Builds a transformer whose inputs are the ids of tokens, `[length]`; the id 0 is padding.

    Its blocks normalise first: `x + attention(norm(x))`, then `x + mlp(norm(x))` with GELU and four
    times the width. Positions are learned.

    Args:
        image_shape: `(length,)`.
        num_classes: The number of outputs, of a sequence or of each token.
        vocabulary: The number of tokens.
        width: The number of features of a token.
        depth: The number of blocks.
        heads: The number of heads of attention.
        causal: Whether a token attends to itself and to those before it alone.
        per_token: Whether there are outputs for each token, as for the task `sequence`; otherwise
            they are of the mean over tokens.
        prompts: The number of learned vectors before the tokens, in layer `prompts`; tokens attend
            to them. Trained alone in a frozen network, they are prompt tuning (Lester et al.,
            "The power of scale for parameter-efficient prompt tuning", EMNLP 2021).
    """
    if width % heads:
        raise ValueError(f"The width {width} of a transformer must be a multiple of heads={heads}.")
    (length,) = image_shape
    ids = tf.keras.Input([length], dtype=tf.int32)
    present = _Present(name="present")(ids)
    x = tf.keras.layers.Embedding(vocabulary, width, name="tokens")(ids)
    x = _Positions(name="positions")(x)
    attended = present
    if prompts:
        x, attended = _Prompts(prompts, name="prompts")([x, present])
    for block in range(1, depth + 1):
        y = tf.keras.layers.LayerNormalization(name=f"block{block}_norm1")(x)
        attention = tf.keras.layers.MultiHeadAttention(
            heads, width // heads, name=f"block{block}_attention"
        )
        y = attention(y, y, attention_mask=attended, use_causal_mask=causal)
        x = tf.keras.layers.Add(name=f"block{block}_add1")([x, y])
        y = tf.keras.layers.LayerNormalization(name=f"block{block}_norm2")(x)
        y = tf.keras.layers.Dense(4 * width, "gelu", name=f"block{block}_dense1")(y)
        y = tf.keras.layers.Dense(width, name=f"block{block}_dense2")(y)
        x = tf.keras.layers.Add(name=f"block{block}_add2")([x, y])
    if prompts:
        x = tf.keras.layers.Cropping1D((prompts, 0), name="without_prompts")(x)
    x = tf.keras.layers.LayerNormalization(name="norm")(x)
    if not per_token:
        x = _MeanOfPresent(name="mean", dtype="float32")([x, present])
    return tf.keras.Model(
        ids, tf.keras.layers.Dense(num_classes, name="head")(x), name="transformer"
    )


# Operations outside of layers, and layers without names, could not be loaded from files.
_saved = tf.keras.utils.register_keras_serializable("tff_pfl")


@_saved
class _Present(tf.keras.layers.Layer):
    """Tells tokens from padding, for all tokens that attend to them."""

    def call(self, ids):
        """Returns `[batch, 1, length]`."""
        return tf.not_equal(ids, 0)[:, tf.newaxis, :]


@_saved
class _MeanOfPresent(tf.keras.layers.Layer):
    """Computes the mean over all tokens but padding; 0 without tokens."""

    def call(self, inputs):
        """Returns `[batch, width]`."""
        x, present = inputs
        weight = tf.linalg.matrix_transpose(tf.cast(present, tf.float32))
        return tf.math.divide_no_nan(tf.reduce_sum(x * weight, 1), tf.reduce_sum(weight, 1))


@_saved
class _Positions(tf.keras.layers.Layer):
    """Adds a learned vector for each position."""

    def build(self, input_shape):
        """Creates the vectors."""
        shape = input_shape[1:]
        self.vectors = self.add_weight("vectors", shape, initializer="random_uniform")

    def call(self, x):
        """Returns the sum."""
        return x + tf.cast(self.vectors, x.dtype)


@_saved
class _Prompts(tf.keras.layers.Layer):
    """Prepends learned vectors to tokens."""

    def __init__(self, number, **options):
        """Makes the layer, with the number of vectors."""
        super().__init__(**options)
        self.number = number

    def build(self, input_shape):
        """Creates the vectors."""
        shape = [self.number, input_shape[0][-1]]
        self.vectors = self.add_weight("vectors", shape, initializer="random_uniform")

    def call(self, inputs):
        """Returns `[batch, prompts + length, width]`, and which of them are not padding."""
        x, present = inputs
        vectors = tf.cast(self.vectors, x.dtype)
        vectors = tf.repeat(vectors[tf.newaxis], tf.shape(x)[0], axis=0)
        present = tf.pad(present, [[0, 0], [0, 0], [self.number, 0]], constant_values=True)
        return tf.concat([vectors, x], 1), present

    def get_config(self):
        """Returns the arguments of the layer."""
        return {**super().get_config(), "number": self.number}

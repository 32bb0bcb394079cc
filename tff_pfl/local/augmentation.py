"""Augmentations by name: random changes of the images of a batch.

Each registered function has the signature `(*, <options with defaults>) -> Augmentation`. An
`Augmentation` is a function `(images [batch, height, width, channels], seed int32[2]) -> images`
that keeps type and shape, and draws its random numbers from the seed.
"""

from collections.abc import Callable

import tensorflow as tf

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.arguments.registry import Registry

AUGMENTATIONS = Registry("augmentation")

Augmentation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@AUGMENTATIONS.register("crop_and_flip")
@takes(padding=whole(0))
def crop_and_flip(*, padding: int = 4, flip: bool = True) -> Augmentation:
    """Returns an augmentation that pads and randomly crops images, and mirrors half of them.

    Padding is black, and crops have the original size. Each image has its own offset, one of
    `(2 padding + 1)^2` equally likely offsets (He et al., "Deep Residual Learning for Image
    Recognition", section 4.2).

    Args:
        padding: The number of black pixels on each side.
        flip: Whether each image is mirrored left to right with probability 1/2.
    """

    def augment(images, seed):
        if images.shape.rank != 4:
            raise ValueError(
                "crop_and_flip needs images, [batch, height, width, channels], but a batch of "
                f"examples has the shape {images.shape}. Leave the augmentation out."
            )
        number, (height, width) = tf.shape(images)[0], images.shape[1:3]
        draw = tf.random.experimental.stateless_split(seed, 2)
        offsets = tf.random.stateless_uniform([number, 2], draw[0], 0, 2 * padding + 1, tf.int32)
        rows = offsets[:, :1] + tf.range(height)
        columns = offsets[:, 1:] + tf.range(width)
        if flip:
            is_flipped = tf.random.stateless_uniform([number, 1], draw[1]) < 0.5
            columns = tf.where(is_flipped, tf.reverse(columns, [1]), columns)
        sides = [padding, padding]
        padded = tf.pad(images, [[0, 0], sides, sides, [0, 0]])
        return _gather(_gather(padded, rows, axis=1), columns, axis=2)

    return augment


def _gather(images, indices, axis):
    """Gathers rows or columns of each image."""
    return tf.gather(images, indices, axis=axis, batch_dims=1)

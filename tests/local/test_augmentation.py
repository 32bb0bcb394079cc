"""Tests augmentation: crops of padded images, mirrored or not, and their use in training."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl.arguments.kinds import KindError
from tff_pfl.local import AUGMENTATIONS, ClientContext, Examples, LocalTraining, evaluate
from tff_pfl.models import Model, Task

SEED = tf.constant([3, 4])
IMAGES = np.random.default_rng(0).integers(1, 256, (40, 4, 5, 2)).astype(np.uint8)


def parts(image, padding, flip):
    """Yields all possible augmentations of an image."""
    padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])
    height, width, _ = image.shape
    for row, column in itertools.product(range(2 * padding + 1), repeat=2):
        part = padded[row : row + height, column : column + width]
        yield part
        if flip:
            yield part[:, ::-1]


@together(("padding", "flip"), [(1, True), (2, False), (0, True)])
def test_crop_and_flip_returns_parts_of_padded_images(padding, flip):
    changed = AUGMENTATIONS["crop_and_flip"](padding=padding, flip=flip)(tf.constant(IMAGES), SEED)
    assert changed.dtype == tf.uint8 and changed.shape == IMAGES.shape
    found = set()
    for before, after in zip(IMAGES, changed.numpy(), strict=True):
        (index,) = (
            i for i, part in enumerate(parts(before, padding, flip)) if (part == after).all()
        )
        found.add(index)
    number = (2 * padding + 1) ** 2 * (1 + flip)
    assert len(found) > min(number, 25) * 0.6  # Each image has its own offset.


def test_all_parts_are_equally_likely():
    images = np.repeat(IMAGES[:1], 4500, axis=0)
    changed = AUGMENTATIONS["crop_and_flip"](padding=1)(tf.constant(images), SEED).numpy()
    counts = [np.sum((changed == part).all(axis=(1, 2, 3))) for part in parts(IMAGES[0], 1, True)]
    # Binomial(4500, 1/18): mean 250, standard deviation 15.4.
    np.testing.assert_allclose(counts, 250, atol=65)


def test_crop_and_flip_needs_images():
    with pytest.raises(ValueError, match=r"needs images, .* has the shape \(3, 7\)"):
        AUGMENTATIONS["crop_and_flip"]()(tf.zeros([3, 7]), SEED)


PATTERN = np.random.default_rng(1).normal(size=IMAGES.shape[1:]).astype(np.float32)


def pattern_model(seen):
    """Returns a model whose loss compares images with a pattern, and which records its calls."""

    def apply(weights, x, training=False, seed=None):
        seen.append((x, seed))
        alike = tf.reduce_mean(PATTERN * tf.cast(x, tf.float32), axis=[1, 2, 3])
        return weights["layer"]["w"] * alike

    def init(seed):
        return {"layer": {"w": tf.constant(1.0)}}

    return Model(init, apply, task=Task("outputs", lambda y, outputs: outputs), name="pattern")


def local_training(**options):
    optimizer = tff.learning.optimizers.build_sgdm(0.01)
    return LocalTraining(optimizer, epochs=2, batch_size=20, **options)


def train(local, seed=(1, 2)):
    """Returns the trained weight, and the images and the seed of each step and of an evaluation."""
    seen = []
    examples = Examples(IMAGES, np.zeros(40, np.int32), np.int32(40))
    context = ClientContext(tf.constant(0), tf.constant(0), tf.constant(seed))
    # The check for mixed rows runs on another model.
    model = dataclasses.replace(pattern_model(seen), made_of=pattern_model([]))
    weights = local.train(model, model.init(0), examples, context).weights
    evaluate(model, weights, examples)
    images, seeds = zip(*seen, strict=True)
    return float(weights["layer"]["w"]), [np.asarray(x) for x in images], seeds


def test_each_step_is_augmented_anew_and_evaluation_is_not():
    augment = AUGMENTATIONS["crop_and_flip"](padding=1)
    weight, (*steps, evaluated), _ = train(local_training(augment=augment))
    plain_weight, (*plain, _), _ = train(local_training())
    assert len(steps) == len(plain) == 4
    changed = []
    for step, before in zip(steps, plain, strict=True):
        for x, original in zip(step, before, strict=True):
            assert any((part == x).all() for part in parts(original, 1, True))
        changed.append(np.mean((step == before).all(axis=(1, 2, 3))))
    assert max(changed) < 0.5  # One of 18 is expected to stay.
    offsets = [(step == 0).any(axis=(2, 3)).tolist() for step in steps]  # Black pixels.
    assert len({str(x) for x in offsets}) == 4
    np.testing.assert_array_equal(evaluated[:40], IMAGES)
    assert weight != plain_weight
    assert train(local_training(augment=augment))[0] == weight
    assert train(local_training(augment=augment), seed=(1, 3))[0] != weight


def test_augmentation_must_keep_the_type():
    def rescaled(images, seed):
        return tf.image.convert_image_dtype(images, tf.float32)  # 0 .. 1 instead of 0 .. 255.

    with pytest.raises(KindError, match="rescaled.* must return images of uint8.*float32"):
        train(local_training(augment=rescaled))


def test_augmentation_and_dropout_draw_different_numbers():
    """Otherwise the augmentation and the first dropout would choose correlated inputs."""
    augmented = []

    def recorded(images, seed):
        augmented.append(tuple(seed.numpy()))
        return images

    *_, (*of_steps, _) = train(local_training(augment=recorded))
    dropout_seeds = {
        tuple(tf.random.experimental.stateless_fold_in(seed, number).numpy())
        for seed in of_steps
        for number in range(1, 20)
    }
    assert len(augmented) == len(of_steps) == 4
    assert not set(augmented) & dropout_seeds

"""Tests `tff_pfl.local.examples`."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.local.test_batches import make_examples
from tff_pfl.local import Examples, examples_type, sample_examples, split_examples
from tff_pfl.local.seeds import run_seed

SIZES = (0, 1, 2, 5, 10, 600)
# The first parts' sizes for clients of `SIZES`, by the second part's share.
FIRST_SIZES = {0.2: (0, 1, 1, 4, 8, 480), 0.3: (0, 1, 1, 3, 7, 420), 0.5: (0, 1, 1, 2, 5, 300)}


def test_examples_type_is_the_type_of_examples():
    spelled = "<x=uint8[?,28,28,1],y=int32[?],size=int32>"
    assert str(examples_type((28, 28, 1))) == spelled
    assert str(examples_type([3], np.float32, capacity=7)) == (
        "<x=float32[7,3],y=int32[7],size=int32>"
    )

    @tff.tensorflow.computation(examples_type([2]))
    def fields(examples):
        assert isinstance(examples, Examples)
        return examples.size

    rows = np.zeros([3, 2], np.uint8), np.zeros([3], np.int32)
    assert fields(Examples(*rows, np.int32(2))) == 2


def labels(examples):
    """Returns the labels in order, and checks that inputs match them."""
    size = int(examples.size)
    assert len(examples.x) == len(examples.y) >= size
    y = np.asarray(examples.y)[:size]
    np.testing.assert_array_equal(examples.x[:size], y[:, np.newaxis] * [1, -1])
    return y.tolist()


def split(examples, share=0.2, seed=(3, 4)):
    first, second = split_examples(examples, share, seed=seed)
    assert isinstance(first, Examples) and isinstance(second, Examples)
    return labels(first), labels(second)


@pytest.mark.parametrize("share", FIRST_SIZES)
def test_split_has_the_documented_sizes_and_all_examples(share):
    for size, first_size in zip(SIZES, FIRST_SIZES[share], strict=True):
        first, second = split(make_examples(size), share)
        assert len(first) == first_size
        assert sorted(first + second) == list(range(size))
        for padding in (1, 200):
            assert split(make_examples(size, size + padding), share) == (first, second)


def test_split_does_not_round_whole_sizes_down():
    """Uses a product that is slightly too small in float32."""
    share, size = 0.35, 180
    assert np.floor(np.float32(1 - share) * np.float32(size)) == round((1 - share) * size) - 1
    first, _ = split_examples(make_examples(size), share, seed=(3, 4))
    assert first.size == round((1 - share) * size)


def test_parts_have_the_rows_of_the_largest_client():
    """Compares with a client that has as many examples as rows."""
    first, second = split_examples(make_examples(3, 10), 0.3, seed=(3, 4))
    assert (len(first.y), len(second.y)) == (7, 3)
    assert (first.size, second.size) == (2, 1)


def test_split_is_a_function_of_both_seeds():
    examples = make_examples(20)
    assert split(examples) == split(examples, seed=(3, tf.constant(4)))
    seconds = [split(examples, seed=seed)[1] for seed in ((3, 4), (3, 5), (4, 4), (0, 0))]
    assert len(set(map(tuple, map(sorted, seconds)))) == 4


def test_each_example_is_equally_likely_in_the_second_part():
    def second(client_id):
        return split_examples(examples, 0.2, seed=(1, client_id))[1].y

    examples = make_examples(10)
    drawn = tf.function(lambda: tf.map_fn(second, tf.range(600)))()
    # Binomial(600, 1/5): mean 120, standard deviation 9.8.
    np.testing.assert_allclose(np.bincount(np.ravel(drawn), minlength=10), 120, atol=44)


@pytest.mark.parametrize("padding", [0, 3])
def test_sample_is_a_part_of_the_examples(padding):
    """Rounds down to at least one example, and draws by the seed, whatever the padding."""
    for size, number in zip(SIZES, (0, 1, 1, 3, 7, 420), strict=True):
        sampled = sample_examples(make_examples(size, size + padding), 0.7, seed=(3, 4))
        assert sampled.size == number
        assert len(set(labels(sampled))) == number and set(labels(sampled)) <= set(range(size))
        assert labels(sampled) == labels(sample_examples(make_examples(size), 0.7, seed=(3, 4)))
    assert labels(sampled) != labels(sample_examples(make_examples(600), 0.7, seed=(3, 5)))
    assert sample_examples(make_examples(10, 10 + padding), 1.0, seed=(3, 4)).size == 10
    assert sample_examples(make_examples(10, 10 + padding), 0.0, seed=(3, 4)).size == 1


def test_run_seeds_are_distinct():
    """Keeps small seeds unchanged, and uses every bit of large seeds."""
    np.testing.assert_array_equal(run_seed(7, -1), [7, -1])
    seeds = [5, 5 + (1 << 31), 5 + (1 << 32), 5 + (1 << 61), 5 + (1 << 62), (1 << 63) - 1]
    assert len({tuple(run_seed(seed, 0).numpy()) for seed in seeds}) == len(seeds)

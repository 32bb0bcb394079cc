"""Tests branch means of noisy sums: their noise, and its effect on a model."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    assert_close,
    local_sgd,
    make_clients,
    tiny_model,
    vector,
)
from tff_pfl.aggregators import Shares
from tff_pfl.algorithms import make
from tff_pfl.local import trees
from tff_pfl.privacy import noise_of_mean, with_privacy
from tff_pfl.privacy.branches import as_one_vector, from_one_vector
from tff_pfl.templates import compose
from tff_pfl.testing import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
MODEL, LOCAL = tiny_model(), local_sgd()
LAYERS, BRANCHES, CLIENTS = 2, 5, 40
NORM = 2.0


def private(*, noise_multiplier=0.0, clipping="fixed", clip_norm=NORM, **options):
    return with_privacy(
        make("pfedmb", MODEL, LOCAL),
        noise_multiplier=noise_multiplier,
        clients_per_round=CLIENTS,
        clipping=clipping,
        clip_norm=clip_norm,
        seed=1,
        **options,
    )


def pairs(**options):
    """Returns the process of the two means, and a pair of zeros."""
    (exchange,) = private(**options).exchanges
    initial = make("pfedmb", MODEL, LOCAL).server_init(1).weights
    weights = tf.nest.map_structure(lambda leaf: np.zeros(leaf.shape, np.float32), initial)
    zeros = Shares(weights, {layer: np.zeros(BRANCHES, np.float32) for layer in weights})
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), zeros)
    pair = tff.types.tensorflow_to_type(specs)
    return exchange.aggregator.pairs.create(pair, tff.types.to_type(np.float32)), zeros


@pytest.mark.thorough
def test_secure_sums_hide_changes_and_shares():
    process, _ = pairs(noise_multiplier=2.0, secure_sums=True)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


def shared(value, share):
    """Multiplies each branch by its share."""
    return {
        layer: tf.nest.map_structure(
            lambda leaf, row=share[layer]: leaf * np.reshape(row, [-1] + [1] * (np.ndim(leaf) - 1)),
            part,
        )
        for layer, part in value.items()
    }


@pytest.mark.thorough
@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
def test_noise_of_changes_and_shares_adds_up_to_the_multiplier(clipping):
    """Includes the count of clipped clients if the norm adapts: the 1 / z^2 add up."""
    z, rounds = 2.0, 60
    process, _ = pairs(noise_multiplier=z, clipping=clipping)
    state, noise = process.initialize(), []
    for _ in range(rounds):
        output = process.next(state, [], [])
        noise.append([vector(output.result[field]) for field in Shares._fields])
        state = output.state
    value_noise = np.std(noise[0][0]) * CLIENTS / NORM
    shares = np.array([round_noise[1] for round_noise in noise])
    share_noise = np.std(shares) * CLIENTS / np.sqrt(LAYERS)
    expected = z if clipping == "fixed" else noise_of_mean(z, CLIENTS)
    assert value_noise == pytest.approx(expected / np.sqrt(0.75), rel=3 / np.sqrt(2 * 515))
    assert share_noise == pytest.approx(expected / np.sqrt(0.25), rel=3 / np.sqrt(2 * 600))
    first = [round_noise[0][: shares.shape[1]] for round_noise in noise]  # The draws are different.
    assert abs(np.corrcoef(np.ravel(first), np.ravel(shares))[0, 1]) < 3 / np.sqrt(600)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.01, 1e3])
def test_client_moves_each_mean_by_at_most_its_norm(scale):
    process, zeros = pairs()
    rng = np.random.default_rng(0)
    drawn = tf.nest.map_structure(
        lambda leaf: np.float32(scale * rng.normal(size=np.shape(leaf))), zeros
    )
    result = process.next(process.initialize(), [drawn], [np.float32(1)]).result
    for field, longest in (("value", NORM), ("share", np.sqrt(LAYERS))):
        upload, found = vector(getattr(drawn, field)), CLIENTS * vector(result[field])
        clipped = upload * min(1, longest / np.linalg.norm(upload))
        np.testing.assert_allclose(found, clipped, rtol=1e-5)


@pytest.mark.thorough
def test_shares_are_not_clipped_with_short_changes():
    """Checks that clipping shortens one client's change without turning it."""
    process = compose(private(clip_norm=0.01), EXAMPLES_TYPE, seed=1)
    unclipped = EagerProcess(make("pfedmb", MODEL, LOCAL), seed=1)
    state = process.initialize()
    (client,) = make_clients(process, (6,))
    moved, expected = (
        trees.subtract(one.next(state, [client]).state.algorithm.weights, state.algorithm.weights)
        for one in (process, unclipped)
    )
    (own,) = unclipped.next(state, [client]).clients
    alpha = dict(zip(expected, tf.nn.softmax(own.coefficients).numpy(), strict=True))
    norm = np.linalg.norm(vector(shared(expected, alpha)))
    assert_close(moved, trees.scale(expected, 0.01 / norm))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("scale", [0.01, 1e3])
def test_as_one_vector_scales_both_to_their_part_of_the_norm(scale):
    """Checks that clipping has no effect, and that short changes arrive unchanged."""
    _, zeros = pairs()
    rng = np.random.default_rng(0)
    value = tf.nest.map_structure(
        lambda leaf: tf.constant(scale * rng.normal(size=leaf.shape), tf.float32), zeros.value
    )
    share = {layer: tf.constant([0.0, 0.1, 0.2, 0.3, 0.4]) for layer in value}
    one = as_one_vector(Shares(value, share), NORM)
    assert np.linalg.norm(vector(one)) <= NORM * (1 + 1e-6)
    found = from_one_vector(one, NORM)
    assert_close(found.share, share)
    expected = vector(shared(value, share))
    expected *= min(1.0, NORM * np.sqrt(0.75) / np.linalg.norm(expected))
    np.testing.assert_allclose(vector(found.value), expected, rtol=1e-4, atol=1e-6)

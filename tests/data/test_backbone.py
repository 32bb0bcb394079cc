"""Tests personalization on the features of a large frozen network."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tests.federation import assert_close, local_sgd, make_client, run_rounds
from tff_pfl import runtime
from tff_pfl.testing import EagerProcess

SIZES = (5, 7, 4)


@pytest.mark.slow
@pytest.mark.parametrize("create", [runtime.create_graph_context, runtime.create_cpp_context])
def test_fedper_trains_heads_on_features_of_a_frozen_mobilenet(create):
    tf.keras.utils.set_random_seed(0)
    backbone = tf.keras.applications.MobileNetV2(
        weights=None, include_top=False, pooling="avg", input_shape=(32, 32, 3)
    )
    rng = np.random.default_rng(0)

    def split(size):
        x = rng.integers(0, 256, (size, 32, 32, 3)).astype(np.uint8)
        return x, rng.integers(0, 3, size).astype(np.int32)

    images = tff_pfl.FederatedDataset.from_client_arrays(
        [(*split(size), *split(3)) for size in SIZES], num_classes=3
    )
    features = images.map(lambda x: backbone(tf.cast(x, tf.float32) / 255), batch_size=8)
    expected = backbone.predict(images.x / np.float32(255), verbose=0)
    np.testing.assert_allclose(features.x, expected, rtol=1e-3, atol=1e-5)
    assert features.image_shape == (1280,)

    def network():
        hidden = tf.keras.layers.Dense(8, "relu", name="body")
        return tf.keras.Sequential(
            [tf.keras.Input((1280,)), hidden, tf.keras.layers.Dense(3, name="head")]
        )

    model = tff_pfl.from_keras(network, input_shape=features.image_shape)
    algorithm = tff_pfl.make("fedper", model, local_sgd(0.1))

    def trained(process):
        clients = [make_client(process, i, features.examples(i)) for i in range(len(SIZES))]
        *_, (state, clients) = run_rounds(process, clients, [(0, 1), (1, 2)])
        return state.algorithm, process.personalize(state, clients)

    with tff.framework.get_context_stack().install(create()):
        found = trained(tff_pfl.compose(algorithm, features.examples_type, seed=0))
    assert_close(found, trained(EagerProcess(algorithm)))

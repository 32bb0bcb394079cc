"""Tests pFedHN and PLGU-GHN: rounds, and equality with Local and FedAvg."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import each_round
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_clients,
    random_examples,
    tiny_model,
)
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.pfedhn.server import HypernetworkServer, OwnChange
from tff_pfl.local import ClientContext, trees
from tff_pfl.local.seeds import client_seed
from tff_pfl.models import Hypernetwork, layer_parts

MODEL = tiny_model()
PARTS = layer_parts(MODEL)
N, SIZES = 4, (4, 6, 3, 5)
COHORTS = ((0, 1), (1, 2), (2, 0))
# Without weight decay, momentum and clipping, pFedHN can equal Local or FedAvg.
PLAIN = {
    "hidden_layers": 0,
    "bias": False,
    "server_learning_rate": 1,
    "server_momentum": 0.0,
    "server_weight_decay": 0.0,
    "server_clip_norm": None,
    "embedding_learning_rate": 0.0,
}


def process_of(build="pfedhn", epochs=2, **options):
    if build not in ("fedavg", "local"):
        options = {"num_clients": N, "hidden_width": 6, **options}
    return eager(build, MODEL, local_sgd(epochs=epochs), **options, seed=1)


def run(process, cohorts=COHORTS, state=None):
    return each_round(process, make_clients(process, SIZES), cohorts, state)


def with_all_rows(state, weights):
    """Sets each row of the kernels of a linear hypernetwork to the same weights."""
    phi = {
        f"{layer}/{name}": {"kernel": np.tile(np.ravel(w), [len(state.algorithm.embeddings[0]), 1])}
        for layer, tensors in weights.items()
        for name, w in tensors.items()
    }
    return state._replace(algorithm=state.algorithm._replace(phi=phi))


@pytest.mark.thorough
def test_constant_one_hot_embeddings_with_a_linear_hypernetwork_equal_local():
    process = process_of(embeddings="one_hot", **PLAIN)
    local = process_of("local")
    start = with_all_rows(process.initialize(), MODEL.init(1))
    cohorts = ((0,), (2,), (0,), (1,), (0,))
    pairs = zip(run(process, cohorts, start), run(local, cohorts), strict=True)
    for found, alone in pairs:
        models = process.personalize(found.state, found.clients)
        assert_close(models, [client.state.model for client in alone.clients], tolerance=1e-6)
        assert_equal(models[3], MODEL.init(1))
        assert_equal(found.state.algorithm.embeddings, np.eye(N, dtype=np.float32))


@pytest.mark.thorough
def test_single_constant_embedding_equals_uniform_fedavg():
    process = process_of(embeddings="constant", embedding_dim=1, **PLAIN)
    fedavg = process_of("fedavg", weighting="uniform")
    start = with_all_rows(process.initialize(), MODEL.init(1))
    for found, expected in zip(run(process, state=start), run(fedavg), strict=True):
        models = process.personalize(found.state, found.clients)
        assert_close(models, [expected.state.algorithm.weights] * N, tolerance=1e-6)
        assert_equal(found.state.algorithm.embeddings, np.ones([N, 1], np.float32))


# Options, the widths of the hypernetwork, and the rates and options of the server they should make.
ROUNDS = {
    "pfedhn": (
        {"hidden_width": 100},
        (100, 100, 100, 100),
        {"momentum": 0.9, "rate": 0.01, "embedding_rate": 0.01},
        {"weight_decay": 0.001, "clip_norm": 50.0},
    ),
    "plgu_ghn": (
        {
            "embedding_dim": 3,
            "server_learning_rate": 0.2,
            "server_momentum": 0.5,
            "server_weight_decay": 0.1,
            "server_clip_norm": 0.5,
            "embedding_learning_rate": 0.3,
            "rho": 0.4,
            "layer_wise": True,
        },
        (6, 6, 6),
        {"momentum": 0.5, "rate": 0.2, "embedding_rate": 0.3},
        {"weight_decay": 0.1, "clip_norm": 0.5, "rho": 0.4, "layer_wise": True},
    ),
    "pfedhn-authors": (
        {"embedding_momentum": 0.9, "clip_jointly": True, "server_clip_norm": 0.5},
        (6, 6, 6, 6),
        {"momentum": 0.9, "rate": 0.01, "embedding_rate": 0.01},
        {"weight_decay": 0.001, "clip_norm": 0.5, "embedding_momentum": 0.9, "clip_jointly": True},
    ),
    "pfedhn_pc": (
        {"hidden_layers": 1, "bias": False, "server_momentum": 0.0, "server_learning_rate": 0.05},
        (6,),
        {"momentum": None, "rate": 0.05, "embedding_rate": 0.05},
        {"weight_decay": 0.001, "clip_norm": 50.0},
    ),
}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_agree_with_explicit_training(name):
    """Tests that own layers are trained with generated ones, and that absent clients keep them."""
    options, widths, rates, of_server = ROUNDS[name]
    process, is_pc = process_of(name.split("-")[0], **options), name == "pfedhn_pc"
    target = PARTS.shared_model(MODEL, {}) if is_pc else MODEL
    dim = options.get("embedding_dim", 2)
    hypernetwork = Hypernetwork(target, dim, widths, bias=not is_pc)
    server = HypernetworkServer(
        hypernetwork,
        tff.learning.optimizers.build_sgdm(rates["rate"], rates["momentum"]),
        rates["embedding_rate"],
        **of_server,
    )
    expected = server.init(process.initialize().algorithm.embeddings, 1)
    generated = target.layers
    assert generated == (("dense1",) if is_pc else ("dense1", "head"))
    own = [split(MODEL.init(1), generated)[1]] * N
    for t, (cohort, state, clients, _) in enumerate(run(process)):
        changes = []
        for i in cohort:
            received = server.own(expected, tf.constant(i))
            context = ClientContext(tf.constant(t), tf.constant(i), client_seed((1, 0), t, i))
            trained = local_sgd(epochs=2).train(
                MODEL, received | own[i], random_examples(SIZES[i], seed=i), context
            )
            shared, own[i] = split(trained.weights, generated)
            changes.append(trees.subtract(shared, received))
        uploads = OwnChange(tf.constant(cohort), trees.stack(changes))
        uploads = Stack(uploads, tf.ones([len(cohort)]))
        expected, _ = server.finalize(expected, uploads, tf.constant(t))
        assert_close(state.algorithm.phi, expected.phi)
        assert_close(state.algorithm.embeddings, expected.embeddings)
        assert_close([client.state.layers for client in clients], own)
    assert_equal(clients[3].state, process.initialize_client(3))
    for i, model in enumerate(process.personalize(state, clients)):
        assert list(model) == list(MODEL.layers)
        assert_close(model, server.own(expected, tf.constant(i)) | own[i])


def split(weights, generated):
    """Splits weights into generated layers and the client's own layers."""
    return [
        {name: layer for name, layer in weights.items() if (name in generated) == is_generated}
        for is_generated in (True, False)
    ]


def test_embeddings_have_initial_values():
    one_hot, constant = (
        process_of(embeddings=name).initialize().algorithm.embeddings
        for name in ("one_hot", "constant")
    )
    assert_equal(one_hot, np.eye(N, dtype=np.float32))
    assert_equal(constant, np.ones([N, 2], np.float32))
    normal = process_of(num_clients=203, hidden_layers=1).initialize().algorithm.embeddings
    assert normal.shape == (203, 1 + 203 // 4)
    assert abs(np.mean(normal)) < 0.02
    assert abs(np.std(normal) - 1) < 0.02

"""Tests algorithms that equal another one at an end of their options, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    SIZES,
    assert_close,
    assert_equal,
    differ,
    eager,
    leaves,
    local_sgd,
    make_clients,
    random_examples,
    tiny_model,
    trained,
)
from tests.marks import slow
from tff_pfl.local import ClientContext, LocalTraining, exact_gradient, trees
from tff_pfl.local.seeds import client_seed
from tff_pfl.templates import Client

MODEL = tiny_model()
LAYERS = MODEL.layers
build_sgdm = tff.learning.optimizers.build_sgdm
# With momentum, a decaying rate and two epochs: a method that loses one of them differs.
LOCAL, ONE_EPOCH = (
    LocalTraining(build_sgdm(0.3, momentum=0.5), epochs, batch_size=4, learning_rate_decay=0.9)
    for epochs in (2, 1)
)
OWN = {"personalized": "local"}
UNIFORM = {"weighting": "uniform"}
FEDERATION = {"num_clients": 4, "clients_per_round": 4}
MO_CE = {"beta": 0.8, "communication_efficient": True, "weighting": "num_examples"}
EQUAL_SCORES = {"rho": 0.3, "scores": "equal", "eps_from": "global"}  # makes LWSAM SAM

# An algorithm and its options, and the equal algorithm and its options.
SAME_SHARED = [
    ("apfl", {"alpha": 0.0}, "fedavg", {}),
    slow("apfl", {"alpha": 0.3, "adaptive": True, "vbar_refresh": "after"}, "fedavg", {}),
    slow("ditto", {"lambda_": 0.7}, "fedavg", {}),
    ("fedala", {"num_mixed_layers": 0}, "fedavg", {}),
    slow("fedbabu", {"head_layers": ()}, "fedavg", {}),
    ("fedbabu", {"fine_tune_epochs": 2}, "fedrep", {"head_epochs": 0, "body_epochs": 2}),
    slow("fedper", {"personal_layers": ()}, "fedavg", {}),
    (
        "fedrep",
        {"personal_layers": (), "body_epochs": 2, "local": ONE_EPOCH},
        "fedavg",
        {},
    ),
    slow("lg_fedavg", {"shared_layers": LAYERS, "alternate": True}, "fedavg", {}),
    slow("plgu_lf", {"rho": 0.0, "num_personal_layers": 0}, "fedavg", UNIFORM),
    slow("plgu_lf", {"rho": 0.0, "num_personal_layers": 1}, "fedavg", UNIFORM),
    slow("plgu_lf", {"rho": 0.0, "num_personal_layers": 2}, "fedavg", UNIFORM),
    *(
        (slow if number != 1 else pytest.param)(
            "plgu_lf",
            EQUAL_SCORES | {"num_personal_layers": number},
            "fedsam",
            {"rho": 0.3, **UNIFORM},
        )
        for number in (0, 1, 2)
    ),
]
SAME_PERSONAL = [
    ("apfl", {"alpha": 1.0}, "local", {}),
    slow("ditto", {"lambda_": 0.0}, "local", {}),
    ("ditto", {"lambda_": 0.0, "personal_epochs": 1}, "local", {"local": ONE_EPOCH}),
    slow("fedala", {"mixing_learning_rate": 0.0, "personalized": "last"}, "fedavg", OWN),
    ("fedper", {"personal_layers": LAYERS}, "local", {}),
    ("fedprox", {"mu": 0.0, **OWN}, "fedavg", OWN),
    slow(
        "fedrep",
        {"personal_layers": LAYERS, "head_epochs": 2, "local": ONE_EPOCH},
        "local",
        {},
    ),
    ("fedsam", {"rho": 0.0, **OWN}, "fedavg", OWN),
    ("lg_fedavg", {"shared_layers": (), "alternate": True}, "local", {}),
    ("pgfed", {"mu": 0.0, **MO_CE, **FEDERATION}, "fedavg", OWN),
    slow(
        "plgu_ghn",
        {"rho": 0.0, "num_clients": 4, "hidden_width": 6},
        "pfedhn",
        {"hidden_layers": 3, "num_clients": 4, "hidden_width": 6},
    ),
]


def trained_pair(name, options, other, other_options):
    return trained(name, **{"local": LOCAL} | options), trained(
        other, **{"local": LOCAL} | other_options
    )


def ids(value):
    return value if isinstance(value, str) else "-".join(value) or "default"


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options", "other", "other_options"), SAME_SHARED, ids=ids)
def test_shared_parts_are_equal(name, options, other, other_options):
    found, expected = trained_pair(name, options, other, other_options)
    assert_equal(found.shared, expected.shared)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options", "other", "other_options"), SAME_PERSONAL, ids=ids)
def test_personal_models_are_equal(name, options, other, other_options):
    found, expected = trained_pair(name, options, other, other_options)
    assert_equal(found.personal, expected.personal)
    if other == "fedavg":
        assert_equal(found.shared, expected.shared)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "option", "others"),
    [
        ("fedsam", {"rho": 0.3}, ("fedavg", {})),
        slow("plgu_ghn", {}, ("plgu_ghn", {"rho": 0.0})),
    ],
)
def test_personal_models_differ_inside_the_range(name, option, others):
    federation = {"num_clients": 4, "hidden_width": 6} if name == "plgu_ghn" else {}
    other, options = others
    found, expected = trained_pair(name, option | federation, other, options | federation)
    assert differ(found.personal, expected.personal)


class TestDitto:
    def test_lambda_pulls_own_models_to_the_received_model(self):
        local = local_sgd(learning_rate=0.01, epochs=2)
        process = eager("ditto", MODEL, local, lambda_=99.0, seed=1)
        state = process.initialize()
        moved = [  # personal models far from the global one
            c._replace(state=c.state._replace(model=trees.add(c.state.model, ones_like(c))))
            for c in make_clients(process, SIZES)
        ]
        for new in process.next(state, moved).clients:
            # v - w shrinks by (1 - eta * lambda) = 0.01 at each of two steps or more.
            assert_close(new.model, state.algorithm.weights, tolerance=0.02)

    def test_own_models_stay_without_personal_epochs(self):
        clients = trained("ditto", lambda_=0.0, personal_epochs=0).clients
        assert_equal([c.state.model for c in clients], [MODEL.init(1)] * 3)


def ones_like(client):
    return tf.nest.map_structure(np.ones_like, client.state.model)


class TestFedAvg:
    @pytest.mark.parametrize(
        ("weighting", "weights"), [("num_examples", SIZES), ("uniform", (1, 1, 1))]
    )
    def test_shared_model_is_the_weighted_average(self, weighting, weights):
        found = trained("fedavg", **OWN, weighting=weighting, cohorts=((0, 1, 2),))
        models = [leaves(own.model) for own in found.client_states]
        expected = [np.average(leaf, axis=0, weights=weights) for leaf in zip(*models, strict=True)]
        assert_close(leaves(found.shared), expected, tolerance=1e-6)

    def test_round_of_one_client_is_its_local_training(self):
        context = ClientContext(
            round_num=tf.constant(0), client_id=tf.constant(1), seed=client_seed((1, 0), 0, 1)
        )
        expected = local_sgd().train(MODEL, MODEL.init(1), random_examples(6, seed=1), context)
        assert_close(trained("fedavg", cohorts=((1,),)).shared, expected.weights, tolerance=1e-6)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("name", "options", "kept"),
    [
        ("fedavg", {}, lambda own: own),
        ("feddyn", {"num_clients": 3}, lambda own: own.own),
        ("scaffold", {"num_clients": 3}, lambda own: own.own),
    ],
    ids=["fedavg", "feddyn", "scaffold"],
)
def test_personalized_chooses_the_personal_model(name, options, kept):
    """Covers a client that never took part, the last one."""
    for personalized in ("global", "local"):
        found = trained(name, personalized=personalized, cohorts=((0, 1),), **options)
        own = found.client_states[:2]
        assert_equal(found.process.global_weights(found.state), found.shared)
        models = [found.shared] * 3
        if personalized == "local":
            models[:2] = [kept(state).model for state in own]
        assert_equal(found.personal, models)


def test_momentum_restarts_and_the_rate_decays():
    """In two rounds of one full-batch step each, momentum has no effect and the rate halves."""
    local = LocalTraining(build_sgdm(0.4, momentum=0.9), batch_size=16, learning_rate_decay=0.5)
    process = eager("local", MODEL, local, seed=1)
    (client,) = make_clients(process, (5,))
    state, weights = process.initialize(), MODEL.init(1)
    for rate in (0.4, 0.2):
        output = process.next(state, [client])
        state, client = output.state, Client(client.client_id, output.clients[0], client.data)
        gradient = exact_gradient(MODEL, weights, client.data).gradient
        weights = trees.subtract(weights, trees.scale(gradient, rate))
        assert_close(client.state.model, weights, tolerance=1e-6)

"""Tests algorithms that equal another one at an end of their options, bit for bit."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import each_round
from tests.federation import (
    SIZES,
    assert_close,
    assert_equal,
    eager,
    leaves,
    make_clients,
    tiny_model,
    trained,
)
from tests.marks import slow
from tff_pfl.local import LocalTraining, exact_gradient, trees

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
    ("fedrep", {"personal_layers": (), "body_epochs": 2, "local": ONE_EPOCH}, "fedavg", {}),
    slow("lg_fedavg", {"shared_layers": LAYERS, "alternate": True}, "fedavg", {}),
    slow("plgu_lf", {"rho": 0.0, "num_personal_layers": 2}, "fedavg", UNIFORM),
    ("plgu_lf", EQUAL_SCORES, "fedsam", {"rho": 0.3, **UNIFORM}),
]
SAME_PERSONAL = [
    ("apfl", {"alpha": 1.0}, "local", {}),
    slow("ditto", {"lambda_": 0.0}, "local", {}),
    ("ditto", {"lambda_": 0.0, "personal_epochs": 1}, "local", {"local": ONE_EPOCH}),
    slow("fedala", {"mixing_learning_rate": 0.0, "personalized": "last"}, "fedavg", OWN),
    ("fedper", {"personal_layers": LAYERS}, "local", {}),
    ("fedprox", {"mu": 0.0, **OWN}, "fedavg", OWN),
    slow("fedrep", {"personal_layers": LAYERS, "head_epochs": 2, "local": ONE_EPOCH}, "local", {}),
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


def test_own_models_of_ditto_stay_without_personal_epochs():
    clients = trained("ditto", lambda_=0.0, personal_epochs=0).clients
    assert_equal([c.state.model for c in clients], [MODEL.init(1)] * 3)


@pytest.mark.parametrize(
    ("weighting", "weights"), [("num_examples", SIZES), ("uniform", (1, 1, 1))]
)
def test_shared_model_of_fedavg_is_the_weighted_average(weighting, weights):
    found = trained("fedavg", **OWN, weighting=weighting, cohorts=((0, 1, 2),))
    models = [leaves(own.model) for own in found.client_states]
    expected = [np.average(leaf, axis=0, weights=weights) for leaf in zip(*models, strict=True)]
    assert_close(leaves(found.shared), expected, tolerance=1e-6)


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
    process, weights = eager("local", MODEL, local, seed=1), MODEL.init(1)
    rounds = each_round(process, make_clients(process, (5,)), [(0,)] * 2)
    for rate, (_, _, (client,), _) in zip((0.4, 0.2), rounds, strict=True):
        gradient = exact_gradient(MODEL, weights, client.data).gradient
        weights = trees.subtract(weights, trees.scale(gradient, rate))
        assert_close(client.state.model, weights, tolerance=1e-6)

"""Tests variants of FedPG and S-FedPG on a network."""

import pytest

from tests.federation import (
    SIZES,
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_clients,
    tiny_model,
    trained,
)
from tff_pfl.local import trees

LOCAL = local_sgd(learning_rate=0.2)


@pytest.mark.thorough
def test_mean_pseudo_gradients_equal_uniform_fedavg():
    """Tests also that personal models with a constant gamma of 1 are FedAvg's local models."""
    options = {"gradient": "pseudo", "direction": "mean", "gamma_mode": "constant", "gamma": 1.0}
    found = trained("fedpg", local=LOCAL, **options)
    expected = trained("fedavg", local=LOCAL, weighting="uniform", personalized="local")
    assert_close(found.shared, expected.shared)
    assert_close(found.personal, expected.personal)


def test_pseudo_gradients_at_rate_0_are_0():
    """Tests a rate of 0, with which schedules may end."""
    process, state, clients = trained(
        "fedpg", cohorts=((0, 1),), local=local_sgd(learning_rate=0.0), gradient="pseudo"
    )
    assert_equal(state.algorithm.weights, process.initialize().algorithm.weights)
    assert [int(c.state.participations) for c in clients] == [1, 1, 0]


@pytest.mark.thorough
def test_search_that_accepts_the_first_step_equals_fedpg():
    """With s = 0, the first trial is FedPG's step, and small steps are accepted."""
    local = local_sgd(learning_rate=0.01)
    process, state, clients = trained("s_fedpg", local=local, search_doublings=0)
    output = process.next(state, clients)
    assert output.metrics["search"]["server"]["num_halvings"] == 0
    _, plain, plain_clients = trained("fedpg", local=local)
    assert_close(state.algorithm.weights, plain.algorithm.weights, 1e-6)
    assert_close([c.state for c in clients], [c.state for c in plain_clients], 1e-6)


@pytest.mark.thorough
def test_trials_that_are_not_finite_are_not_chosen():
    """Tests steps so long that losses overflow."""
    local = local_sgd(learning_rate=1e30)
    process = eager("s_fedpg", tiny_model(), local, search_doublings=60, max_trials=140, seed=1)
    clients = make_clients(process, SIZES)
    output = process.next(process.initialize(), clients)
    losses = [output.metrics["train"]["loss"]]
    for _ in range(3):
        clients = [c._replace(state=s) for c, s in zip(clients, output.clients, strict=True)]
        output = process.next(output.state, clients)
        losses.append(output.metrics["train"]["loss"])
        assert output.metrics["search"]["num_nonfinite"] == 0
    assert losses == sorted(losses, reverse=True)


@pytest.mark.thorough
def test_round_of_all_clients_rebuilds_personal_models():
    """Tests that the memory of absent clients does not matter."""
    process, state, clients = trained("fedpg", cohorts=((0, 1), (1,)))
    rebuilt = process.next(state, clients).clients
    everyone = [c._replace(state=own) for c, own in zip(clients, rebuilt, strict=True)]
    models = process.personalize(state, everyone)
    forgetful = process.initialize()
    with_same_weights = forgetful._replace(
        round_num=state.round_num,
        algorithm=forgetful.algorithm._replace(weights=state.algorithm.weights),
    )
    expected = process.next(with_same_weights, make_clients(process, SIZES)).clients
    assert_close(models, [own.model for own in expected], 1e-6)
    step = trees.subtract(models[2], state.algorithm.weights)
    assert float(trees.norm(step)) > 1e-3

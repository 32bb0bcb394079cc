"""FedBN: FedPer of normalisation layers, between FedAvg and Local."""

import collections
import dataclasses
import functools

import numpy as np
import pytest

from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    last,
    local_sgd,
    make_clients,
    run_rounds,
)
from tests.quadratics import quadratic_clients, quadratic_model, spd, vector_of
from tff_pfl.testing import tiny_normalized_model

MODEL = tiny_normalized_model()
COHORTS = ((0, 1), (1, 2), (0, 2))  # who takes part in each round
DIM, RATE, STEPS = 3, 0.2, 4
A = [spd(DIM, seed) for seed in range(3)]
C = [np.random.default_rng(10 + i).normal(size=DIM) for i in range(3)]
SIZES = (1, 3, 2)  # of clients that have the same example several times, all in one batch


@functools.cache
def process_of(name, **options):
    return eager(name, MODEL, local_sgd(), **options, seed=1)


@functools.cache
def trained(name, cohorts=COHORTS, **options):
    """`(server state, clients)` after some rounds."""
    process = process_of(name, **options)
    return last(run_rounds(process, make_clients(process, (4, 6, 3)), cohorts))


def test_clients_keep_their_normalization_and_share_the_rest():
    state, clients = trained("fedbn")
    assert list(state.algorithm.weights) == ["dense1", "head"]
    norms = [client.state.head for client in clients]
    assert all(list(norm) == ["norm"] for norm in norms)
    assert not np.allclose(norms[0]["norm"]["gamma"], norms[1]["norm"]["gamma"])
    models = process_of("fedbn").personalize(state, clients)
    for model, norm in zip(models, norms, strict=True):
        assert_equal(model["norm"], norm["norm"])
        assert_equal([model["dense1"], model["head"]], state.algorithm.weights)


def test_with_all_other_layers_personal_it_is_local():
    _, clients = trained("fedbn", also_personal=("dense1", "head"))
    expected = [client.state.model for client in trained("local")[1]]
    assert_equal([client.state.head for client in clients], expected)


def quadratic_with_scale():
    """Whose last weight is the scale of a layer."""
    model = quadratic_model(2, 1)

    def named(weights):
        body, norm = weights.values()
        return collections.OrderedDict(body=body, norm=collections.OrderedDict(gamma=norm["w"]))

    def unnamed(weights):
        norm = collections.OrderedDict(w=weights["norm"]["gamma"])
        return collections.OrderedDict(layer0=weights["body"], layer1=norm)

    return dataclasses.replace(
        model,
        init=lambda seed: named(model.init(seed)),
        apply=lambda weights, x, **options: model.apply(unnamed(weights), x, **options),
    )


@pytest.mark.parametrize(
    ("weighting", "weights"), [("uniform", (1, 1, 1)), ("num_examples", SIZES)]
)
def test_rounds_on_quadratics(weighting, weights):
    """Joint steps, of which the first two entries are averaged."""
    options = {} if weighting == "uniform" else {"weighting": weighting}
    local = local_sgd(RATE, STEPS, max(SIZES))
    process = eager("fedbn", quadratic_with_scale(), local, **options, seed=2)
    clients = quadratic_clients(process, A, C, SIZES)
    start = vector_of(quadratic_model(2, 1).init(2)).astype(np.float64)
    body, scales = start[:2], [start[2:]] * 3
    for cohort, (state, now) in zip(COHORTS, run_rounds(process, clients, COHORTS), strict=True):
        ends = {}
        for i in cohort:
            contraction = np.linalg.matrix_power(np.eye(DIM) - RATE * A[i], STEPS)
            ends[i] = C[i] + contraction @ (np.append(body, scales[i]) - C[i])
            scales[i] = ends[i][2:]
        body = np.average(
            [ends[i][:2] for i in cohort], axis=0, weights=[weights[i] for i in cohort]
        )
        assert_close(state.algorithm.weights["body"]["w"], body)
        assert_close([client.state.head["norm"]["gamma"] for client in now], scales)

"""Tests FedBN: its rounds on quadratics whose last weight is the scale of a normalisation."""

import collections
import dataclasses

import numpy as np
import pytest

from tests.algorithms.rounds import COPIES, QUADRATIC, START, A, C, clients_of, each_round
from tests.federation import assert_close, eager, local_sgd
from tests.marks import slow
from tests.quadratics import descended

RATE, STEPS = 0.2, 4


def quadratic_with_scale():
    """Returns a quadratic model whose last weight is the scale of a layer."""

    def named(weights):
        body, norm = weights.values()
        return collections.OrderedDict(body=body, norm=collections.OrderedDict(gamma=norm["w"]))

    def unnamed(weights):
        norm = collections.OrderedDict(w=weights["norm"]["gamma"])
        return collections.OrderedDict(layer0=weights["body"], layer1=norm)

    return dataclasses.replace(
        QUADRATIC,
        init=lambda seed: named(QUADRATIC.init(seed)),
        apply=lambda weights, x, **options: QUADRATIC.apply(unnamed(weights), x, **options),
    )


@pytest.mark.parametrize(
    ("weighting", "weights"), [slow("uniform", (1, 1, 1)), ("num_examples", COPIES)]
)
def test_rounds_match_numpy_on_quadratics(weighting, weights):
    """Clients train all entries jointly, and the server averages the first two."""
    local = local_sgd(RATE, STEPS, max(COPIES))
    process = eager("fedbn", quadratic_with_scale(), local, weighting=weighting, seed=2)
    body, scales = START[:2], [START[2:]] * 3
    for cohort, state, clients, _ in each_round(process, clients_of(process)):
        ends = {}
        for i in cohort:
            ends[i] = descended(np.append(body, scales[i]), A[i], C[i], RATE, STEPS)
            scales[i] = ends[i][2:]
        bodies = [ends[i][:2] for i in cohort]
        body = np.average(bodies, axis=0, weights=np.take(weights, cohort))
        assert_close(state.algorithm.weights["body"]["w"], body)
        for model, scale in zip(process.personalize(state, clients), scales, strict=True):
            assert_close([model["body"]["w"], model["norm"]["gamma"]], [body, scale])

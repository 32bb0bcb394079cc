"""Tests FedBN: its shared layers, and its rounds on quadratics."""

import collections
import dataclasses

import numpy as np
import pytest

from tests.federation import (
    COHORTS,
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    run_rounds,
    trained,
)
from tests.marks import slow
from tests.quadratics import descended, objectives, quadratic_clients, quadratic_model, vector_of
from tff_pfl.testing import tiny_normalized_model

RATE, STEPS = 0.2, 4
A, C = objectives()
SIZES = (1, 3, 2)  # copies of each client's only example, all in one batch


def test_clients_keep_their_normalization_and_share_other_layers():
    found = trained("fedbn", model=tiny_normalized_model)
    assert list(found.shared) == ["dense1", "head"]
    norms = [own.head for own in found.client_states]
    assert all(list(norm) == ["norm"] for norm in norms)
    assert not np.allclose(norms[0]["norm"]["gamma"], norms[1]["norm"]["gamma"])
    for model, norm in zip(found.personal, norms, strict=True):
        assert_equal(model["norm"], norm["norm"])
        assert_equal([model["dense1"], model["head"]], found.shared)


def quadratic_with_scale():
    """Returns a quadratic model whose last weight is the scale of a layer."""
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
    ("weighting", "weights"), [slow("uniform", (1, 1, 1)), ("num_examples", SIZES)]
)
def test_rounds_match_numpy_on_quadratics(weighting, weights):
    """Clients train all entries jointly, and the server averages the first two."""
    options = {} if weighting == "uniform" else {"weighting": weighting}
    local = local_sgd(RATE, STEPS, max(SIZES))
    process = eager("fedbn", quadratic_with_scale(), local, **options, seed=2)
    clients = quadratic_clients(process, A, C, SIZES)
    start = vector_of(quadratic_model(2, 1).init(2)).astype(np.float64)
    body, scales = start[:2], [start[2:]] * 3
    for cohort, (state, now) in zip(COHORTS, run_rounds(process, clients, COHORTS), strict=True):
        ends = {}
        for i in cohort:
            ends[i] = descended(np.append(body, scales[i]), A[i], C[i], RATE, STEPS)
            scales[i] = ends[i][2:]
        body = np.average(
            [ends[i][:2] for i in cohort], axis=0, weights=[weights[i] for i in cohort]
        )
        assert_close(state.algorithm.weights["body"]["w"], body)
        assert_close([client.state.head["norm"]["gamma"] for client in now], scales)

"""What is evaluated, and when."""

import numpy as np
import pytest

from tests.federation import random_examples, tiny_model, tiny_process
from tff_pfl.algorithms import build_local
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import (
    EvaluationOptions,
    Evaluator,
    MetricName,
    PooledEvaluation,
)
from tff_pfl.names import UnknownNameError

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
MODEL = tiny_model()
LOCAL = ["client_id", "num_examples"] + [
    f"personalized/local_test/{metric}" for metric in ("loss", "accuracy")
]
POOLED = [
    f"personalized/{pool}/{metric}"
    for pool in ("generalization_test", "synthetic50_test")
    for metric in ("loss", "accuracy")
]


@pytest.fixture(scope="module")
def federation():
    """`(process, server state, source, dataset)`, of clients that were trained for a round."""
    data = [random_examples(4 + i, seed=i) for i in range(4)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    process = tiny_process(build_local)
    store = ClientStateStore(process.initialize_client, process.client_state_type)
    source = CohortDataSource(dataset, store, process.client_type, seed=0)
    iterator = source.iterator()
    output = process.next(process.initialize(), iterator.select())
    iterator.update(output.clients)
    return process, output.state, source, dataset


def test_by_default_models_are_not_evaluated_on_other_clients():
    assert EvaluationOptions().generalization == "never"


@pytest.mark.parametrize(
    ("generalization", "before", "last"),
    [
        ("never", LOCAL, LOCAL),
        ("last", LOCAL, LOCAL + POOLED),
        ("always", LOCAL + POOLED, LOCAL + POOLED),
    ],
)
def test_when_models_are_evaluated_on_other_clients(federation, generalization, before, last):
    process, state, source, dataset = federation
    options = EvaluationOptions(generalization=generalization)
    evaluator = Evaluator(process, MODEL, dataset, options)
    assert list(evaluator(state, source, is_last=False).columns()) == before
    assert list(evaluator(state, source, is_last=True).columns()) == last


def test_all_options_reach_the_evaluations(federation):
    process, state, source, dataset = federation
    options = EvaluationOptions(
        clients_per_call=3, generalization="last", synthetic=(0.3, 1.0), subsample=True, seed=7
    )
    values = Evaluator(process, MODEL, dataset, options)(state, source, is_last=True).values
    pooled = PooledEvaluation(
        process, MODEL, dataset, synthetic=(0.3, 1.0), subsample=True, seed=7
    )(state, source)
    evaluator = Evaluator(process, MODEL, dataset, EvaluationOptions())
    local = evaluator(state, source, is_last=True).values
    assert list(values) == [*local, *pooled]
    assert MetricName("personalized", "synthetic30_test", "loss") in pooled
    for name, expected in {**local, **pooled}.items():
        np.testing.assert_allclose(values[name], expected, rtol=1e-5)


def test_clients_are_evaluated_a_few_at_a_time(federation):
    process, state, source, dataset = federation
    cohorts = []

    class Recording:
        def select_clients(self, ids):
            cohorts.append(list(ids))
            return source.select_clients(ids)

        def select_examples(self, ids, split):
            return source.select_examples(ids, split)

    options = EvaluationOptions(clients_per_call=3, generalization="always")
    Evaluator(process, MODEL, dataset, options)(state, Recording(), is_last=False)
    assert cohorts == [[0, 1, 2], [3]] * 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"generalization": "allways"},
            UnknownNameError,
            "Unknown generalization 'allways'. Did you mean 'always'",
        ),
        ({"generalization": True}, UnknownNameError, "Valid: 'never', 'last', 'always'"),
        ({"synthetic": (0.5, 1.5)}, ValueError, r"synthetic must .* in \[0, 1\], got \(0.5, 1"),
        ({"synthetic": (-0.1,)}, ValueError, r"in \[0, 1\], got \(-0.1,\)"),
        ({"synthetic": (float("nan"),)}, ValueError, r"in \[0, 1\], got \(nan,\)"),
    ],
)
def test_options_that_are_none(options, error, message):
    with pytest.raises(error, match=message):
        EvaluationOptions(**options)

"""What every algorithm of the table promises. A new algorithm adds a row."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import leaves
from tff_pfl import testing
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.local import trees
from tff_pfl.privacy import with_distributed_privacy
from tff_pfl.templates import Client, compose
from tff_pfl.testing.contract import (
    check_nobody,
    check_secure_sums,
    check_stock_runtime,
    check_vectorized,
)

MODEL = testing.tiny_model()
# Bytes of the model, of its last layer, of a number, and of what is added to a weighted upload.
ALL = 4 * MODEL.num_weights
HEAD = 4 * (5 * 3 + 3)
NUMBER = WEIGHT = 4
CLIENTS, COHORT = 8, 3


class Row(NamedTuple):
    """What is to be expected of an algorithm.

    Attributes:
        name: Its name in the table.
        down: Bytes that a client receives in a round.
        up: Bytes that a client sends in a round.
        options: Those that are not to have their defaults.
        traits: See `testing.Subject`.
        newcomer: `(server's state, initial weights -> models)` that a client which was never seen
            may have, where there is no global model; `None`: any.
    """

    name: str
    down: int
    up: int
    options: dict[str, Any] = {}
    traits: dict[str, Any] = {}
    newcomer: Any = None

    @property
    def subject(self) -> testing.Subject:
        return _subject(self.name, tuple(self.options.items()), tuple(self.traits.items()))

    @property
    def id(self) -> str:
        return "-".join([self.name, *self.options])


@functools.cache
def _subject(name, options, traits):
    def made(model, local):
        return make(
            name, model, local, num_clients=CLIENTS, clients_per_round=COHORT, **dict(options)
        )

    return testing.Subject(made, **dict(traits))


def initial(state, weights):
    return [weights]


def shared_and_initial(state, weights):
    shared = state.weights
    return [{layer: shared.get(layer, weights[layer]) for layer in weights}]


def any_cluster(state, weights):
    return [trees.row(state.models, j) for j in range(2)]


AVERAGED = (ALL, ALL + WEIGHT)
BODY = (ALL - HEAD, ALL - HEAD + WEIGHT)
# Of FedAMP's second exchange; in the first one clients send their id. The pull of its defaults is
# next to nothing.
MIXED = (ALL, ALL + 2 * (NUMBER + WEIGHT))
PULL = {"lambda_": 0.1, "alpha": 0.3}
GENERATED = (ALL, ALL + NUMBER + WEIGHT)
# Weights and auxiliary gradient, how many sent theirs; also the mean gradient, and for each client
# of a cohort two numbers. Change and gradient, intercept, id; also a number for each of a cohort.
PGFED = (3 * ALL + NUMBER + 2 * NUMBER * COHORT, 2 * ALL + 2 * NUMBER + NUMBER * COHORT + WEIGHT)
# Without the mean gradient and these numbers; with the number of steps.
PGFED_CE = (2 * ALL + NUMBER, 2 * ALL + 3 * NUMBER + WEIGHT)
# Weights and direction; round, step and gamma. Gradient, loss, id, whether it is new.
FEDPG = (2 * ALL + 3 * NUMBER, ALL + 2 * NUMBER + 1 + WEIGHT)
# A ladder of 16 steps and how many there are; losses at these, and the id.
LADDER, LOSSES = 17 * NUMBER, 17 * NUMBER + WEIGHT
# Body, centres of 3 classes of 5 features and which there are; then a head, and its round. Change
# of the body and head; mean, variance, features and counts of classes, id.
FEDPAC = (
    ALL - HEAD + 3 * 6 * NUMBER + HEAD + NUMBER,
    ALL + (15 + 1 + 15 + 3 + 1) * NUMBER + WEIGHT,
)
OTHERS = 4  # models that FedFomo sends to a client
# Their servers need every upload by itself, or get none.
SINGLE = {"needs_uploads": True}
EXACT = {"is_random": False, **SINGLE}
MIXING = {"knows_cohort": True, **SINGLE}
# From the shares of 3 classes, by a layer of 16, to the last layer.
HYPER = 4 * (16 * (3 + 1)) + HEAD * (16 + 1)
# The global model is trained on the examples of a client before it is evaluated as its own.
ADAPTED = {"starts_global": False}
# Of which all but a scale and a shift of five neurons travels: as much as there is without them.
NORMALIZED = testing.tiny_normalized_model
BRANCHES = 5

ROWS = [
    Row("apfl", *AVERAGED, {"adaptive": True}),
    Row("ditto", *AVERAGED),
    Row("fedala", *AVERAGED),
    Row(
        "fedamp",
        *MIXED,
        {**PULL, "sigma": 1.0, "distance_scale": "median"},
        MIXING,
        initial,
    ),
    Row("fedavg", *AVERAGED),
    Row("fedavg", *AVERAGED, {"personalized": "local", "weighting": "uniform"}),
    Row("fedbabu", *BODY, traits=ADAPTED),
    Row("fedbabu", *BODY, {"fine_tune_epochs": 0}),
    Row("fedbn", *AVERAGED, traits={"model": NORMALIZED}, newcomer=shared_and_initial),
    Row("feddyn", ALL, ALL + NUMBER + WEIGHT),
    Row(
        "fedfomo",
        OTHERS * (ALL + NUMBER + 1),  # models, whose they are and whether they are there
        # Own model and id, their ids, ratings of all.
        ALL + NUMBER + NUMBER * OTHERS + NUMBER * (1 + OTHERS) + WEIGHT,
        traits=SINGLE,
        newcomer=initial,
    ),
    Row("fedmgda_plus", *AVERAGED, traits=SINGLE),
    Row("fedpac", *FEDPAC, traits=SINGLE, newcomer=shared_and_initial),
    Row("fedper", *BODY, newcomer=shared_and_initial),
    Row("fedper", *AVERAGED, {"personal_layers": ()}, newcomer=shared_and_initial),
    Row("fedper", 0, 0, {"personal_layers": ("dense1", "head")}, newcomer=shared_and_initial),
    Row("fedpg", *FEDPG, traits=EXACT),
    Row("fedprox", *AVERAGED),
    Row("fedrep", *BODY, newcomer=shared_and_initial),
    Row("fedrod", *AVERAGED),
    Row("fedrod", ALL + HYPER, ALL + HYPER + WEIGHT, {"personal_head": "hyper"}, ADAPTED),
    Row("fedsam", *AVERAGED),
    Row("heur_fedamp", *MIXED, PULL, MIXING, initial),
    Row("ifca", 2 * ALL, ALL + NUMBER + WEIGHT, traits=SINGLE, newcomer=any_cluster),
    Row("lg_fedavg", HEAD, HEAD + WEIGHT, newcomer=shared_and_initial),
    Row("lg_fedavg", HEAD, HEAD + WEIGHT, {"alternate": True}, newcomer=shared_and_initial),
    Row("local", 0, 0, traits=SINGLE, newcomer=initial),
    Row("per_fedavg", *AVERAGED, traits=ADAPTED),
    Row("pfedhn", *GENERATED, {"hidden_width": 8, "hidden_layers": 1}, SINGLE),
    Row("pfedhn_pc", *(size - HEAD for size in GENERATED), traits=SINGLE),
    Row("pfedmb", BRANCHES * ALL, BRANCHES * ALL + BRANCHES * 2 * NUMBER + WEIGHT),
    Row("pfedme", *AVERAGED, {"lambda_": 1.0}),
    Row("pgfed", *PGFED, traits=SINGLE),
    Row("pgfed_ce", *PGFED_CE, traits=SINGLE),
    Row("pgfedmo", *PGFED, traits=SINGLE),
    Row("pgfedmo_ce", *PGFED_CE, traits=SINGLE),
    Row("plgu_ghn", *GENERATED, traits=SINGLE),
    Row("plgu_grep", *BODY, newcomer=shared_and_initial),
    Row("plgu_lf", *AVERAGED),
    Row("scaffold", 2 * ALL, 2 * ALL + NUMBER + WEIGHT),
    Row("s_fedpg", FEDPG[0] + LADDER, FEDPG[1] + LOSSES, traits=EXACT),
    Row("splitgp", ALL + HEAD + ALL, ALL + HEAD + WEIGHT),
]
# These differ from another row by an option or by a term of the gradient, which have tests of their
# own.
COVERED = (
    "fedavg-personalized-weighting",
    "fedbabu",
    "fedbn",
    "fedper-personal_layers",
    "fedprox",
    "fedrod-personal_head",
    "fedsam",
    "heur_fedamp",
    "lg_fedavg",
    "lg_fedavg-alternate",
    "local",
    "per_fedavg",
    "pfedhn_pc",
    "pgfed_ce",
    "pgfedmo",
    "pgfedmo_ce",
    "plgu_ghn",
    "plgu_grep",
    "s_fedpg",
)
# Checks that compile something of their own, and those that have them by default, too. With secure
# sums, all of the template of averaging are one computation, but for their client work.
COSTLY = {
    check_nobody: ("fedmgda_plus", "fedpg", "pgfed", "pfedmb"),
    check_secure_sums: ("ditto", "scaffold"),
    check_stock_runtime: ("fedavg", "fedpg", "pgfed"),
    check_vectorized: ("pgfed",),
}


def _slow(condition):
    return [pytest.mark.slow] if condition else []


def _cases(is_one=lambda row: True):
    return [
        pytest.param(row, id=row.id, marks=_slow({row.id, row.name} & set(COVERED)))
        for row in ROWS
        if is_one(row)
    ]


@pytest.fixture(scope="module", params=_cases())
def row(request):
    """Of the module's scope: all tests of a row follow each other, while its graphs are at hand."""
    return request.param


def test_all_algorithms_are_in_the_table():
    assert {row.name for row in ROWS} == set(ALGORITHMS)


def test_contract(row):
    """Runs all checks on one process, and names each that fails."""
    failures = []
    for check in testing.CHECKS:
        if check not in COSTLY:
            try:
                check(row.subject)
            except AssertionError as error:
                failures.append(f"{check.__name__}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(
    ("check", "row"),
    [
        pytest.param(check, row, id=f"{check.__name__}-{row.id}", marks=_slow(row.id not in always))
        for check, always in COSTLY.items()
        for row in ROWS
    ],
)
def test_costly_checks(check, row):
    check(row.subject)


@pytest.mark.slow
@pytest.mark.parametrize("row", _cases(lambda row: not row.traits.get("needs_uploads")))
def test_noise_that_clients_add(row):
    """Of all methods that average; `tests/privacy` has some of them that are always composed."""
    options = {"noise_multiplier": 1.0, "clients_per_round": 3}
    algorithm = with_distributed_privacy(row.subject.algorithm, **options)
    process = compose(algorithm, testing.EXAMPLES_TYPE, testing.contract.SEED)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


def test_training_reduces_the_loss(row):
    clients = row.subject.clients((12, 12, 12))
    state, losses = row.subject.state, []
    for _ in range(20):
        state, states, metrics = row.subject.next(clients, state)
        clients = [client._replace(state=s) for client, s in zip(clients, states, strict=True)]
        losses.append(metrics["train"]["loss"])
    assert int(state.round_num) == 20
    assert losses[-1] < 0.95 * losses[0]


def test_bytes_are_those_of_the_model(row):
    metrics = row.subject.first_round.metrics
    assert metrics["bytes_down_per_client"] == row.down
    assert metrics["bytes_up_per_client"] == row.up


@pytest.mark.parametrize("row", _cases(lambda row: row.newcomer is not None))
def test_a_newcomer_has_what_is_shared_and_what_all_began_with(row):
    subject, seed = row.subject, testing.contract.SEED
    process = testing.EagerProcess(subject.algorithm, seed)
    assert process.global_weights is None
    *cohort, newcomer = (
        Client(np.int32(i), process.initialize_client(i), testing.tiny_examples(size, seed=i))
        for i, size in ((0, 6), (1, 5), (2, 9), (7, 5))
    )
    state = process.next(process.initialize(), cohort).state
    (weights,) = process.personalize(state, [newcomer])
    expected = row.newcomer(state.algorithm, subject.model().init(seed))
    assert any(
        all(map(np.array_equal, leaves(weights), leaves(candidate))) for candidate in expected
    )

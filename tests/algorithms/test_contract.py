"""Tests the contract of all algorithms; a new algorithm adds a row."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import leaves
from tff_pfl import testing
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.algorithms.fedcp import condition
from tff_pfl.local import trees
from tff_pfl.privacy import with_distributed_privacy
from tff_pfl.templates import Client, compose
from tff_pfl.testing.contract import (
    check_compiled,
    check_empty_client,
    check_nobody,
    check_partial_batches,
    check_parts,
    check_secure_sums,
    check_stock_runtime,
    check_vectorized,
)

MODEL = testing.tiny_model()
# Bytes of the model, of its last layer, of a number, and of the weight in a weighted upload.
ALL = 4 * MODEL.num_weights
HEAD = 4 * (5 * 3 + 3)
NUMBER = WEIGHT = 4
CLIENTS, COHORT = 8, 3


class Row(NamedTuple):
    """The expectations about an algorithm.

    Attributes:
        name: The key in `ALGORITHMS`.
        down: Bytes that a client receives in a round.
        up: Bytes that a client sends in a round.
        options: The options that differ from their defaults; a model as a function that makes it.
        traits: See `testing.Subject`.
        newcomer: `(server's state, initial weights -> models)`, the models that a new client may
            have if there is no global model; `None`: any.
    """

    name: str
    down: int
    up: int
    options: dict[str, Any] = {}
    traits: dict[str, Any] = {}
    newcomer: Any = None

    @property
    def subject(self) -> testing.Subject:
        return self._of(testing.Subject)

    @property
    def uncomposed(self) -> testing.Subject:
        return self._of(Uncomposed)

    def _of(self, kind):
        return _subject(kind, self.name, tuple(self.options.items()), tuple(self.traits.items()))

    @property
    def id(self) -> str:
        return "-".join([self.name, *self.options])


class Uncomposed(testing.Subject):
    """A subject whose rounds are run block by block."""

    @functools.cached_property
    def first_round(self):
        return self.next(self.clients((5,)))

    @functools.cached_property
    def process(self):
        return testing.EagerProcess(self.algorithm, testing.contract.SEED)

    def _run(self, computation, *args):
        return computation(*args)


@functools.cache
def _subject(kind, name, options, traits):
    def made(model, local):
        given = {key: option() if callable(option) else option for key, option in options}
        return make(name, model, local, num_clients=CLIENTS, clients_per_round=COHORT, **given)

    return kind(made, **dict(traits))


def initial(state, weights):
    return [weights]


def shared_and_initial(state, weights):
    shared = state.weights
    return [{layer: shared.get(layer, weights[layer]) for layer in weights}]


def own_head_beside_the_global_one(state, weights):
    head, shared = weights["head"], state.weights
    fixed = {"global_head": shared["head"], "condition": condition(head)}
    return [{**shared, "head": head, **fixed}]


def before_splits(state, weights):
    return [trees.row(state.models, 0)]


def any_cluster(state, weights):
    return [trees.row(state.models, j) for j in range(2)]


AVERAGED = (ALL, ALL + WEIGHT)
BODY = (ALL - HEAD, ALL - HEAD + WEIGHT)
# In FedAMP's first exchange clients send only their ids.
MIXED = (ALL, ALL + 2 * (NUMBER + WEIGHT))
# CFL splits a cluster in each round.
SPLITTING = {"eps_1": 1e3, "eps_2": 0.0}
# FedAMP's default pull is almost 0.
PULL = {"lambda_": 0.1, "alpha": 0.3}
# Floco's last layer has ten endpoints. Down: also a point of their simplex, and whether it is the
# client's own. Up: also the id.
SIMPLEX = (ALL + 9 * HEAD + 10 * NUMBER + 1, ALL + 9 * HEAD + NUMBER + WEIGHT)
# FedCAC's clients also send a bool for each weight, and their ids.
MASKED = (ALL, ALL + MODEL.num_weights + NUMBER + WEIGHT)
GENERATED = (ALL, ALL + NUMBER + WEIGHT)
# The mean of 5 features; down, also whether it is known.
WITH_MEAN = (ALL + 6 * NUMBER, ALL + 5 * NUMBER + WEIGHT)
# Down: weights, auxiliary gradient, mean gradient, the number of gradients, and two numbers for
# each client of the cohort. Up: change, gradient, intercept, id, and a number for each client.
PGFED = (3 * ALL + NUMBER + 2 * NUMBER * COHORT, 2 * ALL + 2 * NUMBER + NUMBER * COHORT + WEIGHT)
# Without the mean gradient and the numbers for each client, but with the number of steps.
PGFED_CE = (2 * ALL + NUMBER, 2 * ALL + 3 * NUMBER + WEIGHT)
# Down: weights, direction, round, step and gamma. Up: gradient, loss, id, and whether it is new.
FEDPG = (2 * ALL + 3 * NUMBER, ALL + 2 * NUMBER + 1 + WEIGHT)
# Down: a ladder of 16 steps and their number. Up: the losses at the steps, and the id.
LADDER, LOSSES = 17 * NUMBER, 17 * NUMBER + WEIGHT
# Down: body; centres of 3 classes of 5 features, and which of them exist; a head and its round. Up:
# change of the body, and head; mean, variance, features and counts of classes, id.
FEDPAC = (
    ALL - HEAD + 3 * 6 * NUMBER + HEAD + NUMBER,
    ALL + (15 + 1 + 15 + 3 + 1) * NUMBER + WEIGHT,
)
OTHERS = 4  # the number of models that FedFomo sends to a client
# Down: shares of all clients. Up: id and number of examples, and id in the second exchange.
APPLE = (NUMBER * CLIENTS, ALL + 3 * NUMBER + 2 * WEIGHT)
# The means of 5 features of 3 classes, and whether a class has one, or its number of examples.
PROTOTYPES = 3 * 6 * NUMBER
# Down: a head, and whether it was trained. Up: id, features of 3 classes, and which of them exist.
HEADER = (HEAD + 1, NUMBER + PROTOTYPES + WEIGHT)
# The means of 3 outputs of 3 classes, and their numbers; FD also sends rounds down, and 1 up.
OUTPUTS = 3 * 4 * NUMBER
# With the client's id; the server makes a pass over the means.
TRAINED_PROTOTYPES = (PROTOTYPES, PROTOTYPES + NUMBER + WEIGHT)
QUICK = {"server_epochs": 1}
# A dense layer from 5 to 10 numbers, and a scale and a shift of each of them.
CONDITIONAL = 4 * (10 * (5 + 1) + 2 * 10)
# A body, such layers, and embeddings of 3 classes.
ROUTED = ALL - HEAD + CONDITIONAL + 3 * 5 * NUMBER
# Down: the model, the shares of 3 classes, and a generator from 2 numbers of noise and 3 classes,
# through a layer of 4, to 5 features. Up: the change of the model, and the shares of classes.
GENERATOR = {"noise_dim": 2, "generator_hidden": 4, "generator_steps": 1}
GENERATING = (ALL + 3 * NUMBER + 4 * (4 * 6 + 5 * 5), ALL + 3 * NUMBER + WEIGHT)
# The server needs every single upload, or gets no uploads.
SINGLE = {"needs_uploads": True}
EXACT = {"is_random": False, **SINGLE}
MIXING = {"knows_cohort": True, **SINGLE}
# A hypernetwork from the shares of 3 classes, through a layer of 16, to the last layer.
HYPER = 4 * (16 * (3 + 1)) + HEAD * (16 + 1)
# The global model is trained on a client's examples before it is evaluated as the client's own.
ADAPTED = {"starts_global": False}
# All but a scale and a shift of five neurons is sent: as many bytes as the model without them.
NORMALIZED = testing.tiny_normalized_model
BRANCHES, COMPONENTS = 5, 3
WITH_NORM = ALL + 2 * 5 * NUMBER  # the bytes of all of it

# Their processes are composed in all tests.
COMPOSED = [
    Row("constant", 0, 0, traits={**EXACT, "reads_inputs": False}),
    Row("fedavg", *AVERAGED),
    Row("pgfed", *PGFED, traits=SINGLE),
]
# Other rows cover what composing adds: but for slow tests, their rounds are run block by block.
UNCOMPOSED = [
    Row("apfl", *AVERAGED, {"adaptive": True}),
    Row("apple", APPLE[0] + CLIENTS * ALL, APPLE[1], {}, MIXING, initial),
    Row("cfl", ALL, ALL + NUMBER + WEIGHT, SPLITTING, SINGLE, before_splits),
    Row("confree", *BODY, traits=SINGLE, newcomer=shared_and_initial),
    Row("ditto", *AVERAGED),
    Row("fd", OUTPUTS + 3 * NUMBER, OUTPUTS + NUMBER + WEIGHT, newcomer=initial),
    Row("fedala", *AVERAGED),
    Row("fedamp", *MIXED, {**PULL, "sigma": 1.0, "distance_scale": "median"}, MIXING, initial),
    Row("fedas", *BODY, newcomer=shared_and_initial),
    Row("fedcac", *MASKED, traits=SINGLE),
    Row(
        "fedcp",
        ALL + CONDITIONAL,
        ALL + CONDITIONAL + WEIGHT,
        newcomer=own_head_beside_the_global_one,
    ),
    Row("feddbe", *WITH_MEAN, {"kappa": 0.1}),
    Row("feddyn", ALL, ALL + NUMBER + WEIGHT),
    Row("fedem", COMPONENTS * ALL, COMPONENTS * ALL + WEIGHT, traits=ADAPTED),
    Row(
        "fedfomo",
        OTHERS * (ALL + NUMBER + 1),  # models, their ids and whether they exist
        # Own model and id, ids of the others, ratings of all.
        ALL + NUMBER + NUMBER * OTHERS + NUMBER * (1 + OTHERS) + WEIGHT,
        traits=SINGLE,
        newcomer=initial,
    ),
    Row("fedgh", *HEADER, traits=SINGLE, newcomer=initial),
    Row("fedlc", *AVERAGED),
    Row("fedgen", *GENERATING, GENERATOR),
    Row("fedkd", *AVERAGED),
    Row("fedmgda_plus", *AVERAGED, traits=SINGLE),
    Row("fedntd", *AVERAGED),
    Row("fedpac", *FEDPAC, traits=SINGLE, newcomer=shared_and_initial),
    Row("fedper", *BODY, newcomer=shared_and_initial),
    Row("fedphp", *AVERAGED),
    Row("fedproto", PROTOTYPES, PROTOTYPES + WEIGHT),
    Row("fedpg", *FEDPG, traits=EXACT),
    Row("fedrep", *BODY, newcomer=shared_and_initial),
    Row("fedrod", *AVERAGED),
    Row("fedtgp", *TRAINED_PROTOTYPES, {"lambda_": 1.0, **QUICK}, SINGLE),
    Row("fml", *AVERAGED),
    Row("gpfl", ROUTED, ROUTED + WEIGHT),
    Row("floco", *SIMPLEX, {"tau": 1}, SINGLE),
    Row("ifca", 2 * ALL, ALL + NUMBER + WEIGHT, traits=SINGLE, newcomer=any_cluster),
    Row("knn_per", *AVERAGED, traits=ADAPTED),
    Row("moon", *AVERAGED),
    Row("mr_mtl", *AVERAGED),
    Row("pfedhn", *GENERATED, {"hidden_width": 8, "hidden_layers": 1}, SINGLE),
    Row("pfedmb", BRANCHES * ALL, BRANCHES * ALL + BRANCHES * 2 * NUMBER + WEIGHT),
    Row("pfedme", *AVERAGED, {"lambda_": 1.0}),
    Row("plgu_lf", *AVERAGED),
    Row("scaffold", 2 * ALL, 2 * ALL + NUMBER + WEIGHT),
    Row("splitgp", ALL + HEAD + ALL, ALL + HEAD + WEIGHT),
]
# They differ from another row only by an option or a gradient term with separate tests.
COVERED = [
    Row(
        "apple",
        APPLE[0] + 2 * ALL,
        APPLE[1] + 2 * NUMBER,  # the clients whose models it asks for
        {"num_downloads": 2},
        MIXING,
        initial,
    ),
    Row(
        "confree",
        *AVERAGED,
        {"personal_layers": (), "by_tensor": True},
        SINGLE,
        shared_and_initial,
    ),
    Row("fedavg", *AVERAGED, {"personalized": "local", "weighting": "uniform"}),
    Row("fedbabu", *BODY, traits=ADAPTED),
    Row("fedbabu", *BODY, {"fine_tune_epochs": 0}),
    Row("fedcac", *MASKED, {"personalized": "last", "weighting": "uniform"}, SINGLE),
    Row("fedbn", *AVERAGED, traits={"model": NORMALIZED}, newcomer=shared_and_initial),
    Row("fedgh", *HEADER, {"personalized": "global"}, SINGLE, newcomer=shared_and_initial),
    Row("feddbe", *WITH_MEAN, {"momentum": 0.5, "bias": False, "kappa": 0.1}),
    Row("fedgen", *GENERATING, {"ensemble": "losses", **GENERATOR}, SINGLE),
    Row("fedkd", WITH_NORM, WITH_NORM + WEIGHT, {"network": NORMALIZED}, ADAPTED),
    Row("fedper", *AVERAGED, {"personal_layers": ()}, newcomer=shared_and_initial),
    Row("fedper", 0, 0, {"personal_layers": ("dense1", "head")}, newcomer=shared_and_initial),
    Row("fedprox", *AVERAGED),
    Row("fedproto", PROTOTYPES, PROTOTYPES + WEIGHT, {"predict": "head"}, newcomer=initial),
    Row("fedrod", ALL + HYPER, ALL + HYPER + WEIGHT, {"personal_head": "hyper"}, ADAPTED),
    Row("fedsam", *AVERAGED),
    Row("fedtgp", *TRAINED_PROTOTYPES, {"predict": "head", **QUICK}, SINGLE, initial),
    Row("fml", WITH_NORM, WITH_NORM + WEIGHT, {"network": NORMALIZED}, ADAPTED),
    Row("heur_fedamp", *MIXED, PULL, MIXING, initial),
    Row("lg_fedavg", HEAD, HEAD + WEIGHT, newcomer=shared_and_initial),
    Row("lg_fedavg", HEAD, HEAD + WEIGHT, {"alternate": True}, newcomer=shared_and_initial),
    Row("local", 0, 0, traits=SINGLE, newcomer=initial),
    Row("per_fedavg", *AVERAGED, traits=ADAPTED),
    Row("pfedhn_pc", *(size - HEAD for size in GENERATED), traits=SINGLE),
    Row("pgfed_ce", *PGFED_CE, traits=SINGLE),
    Row("pgfedmo", *PGFED, traits=SINGLE),
    Row("pgfedmo_ce", *PGFED_CE, traits=SINGLE),
    Row("plgu_ghn", *GENERATED, traits=SINGLE),
    Row("plgu_grep", *BODY, newcomer=shared_and_initial),
    Row("s_fedpg", FEDPG[0] + LADDER, FEDPG[1] + LOSSES, traits=EXACT),
]
ROWS = [*COMPOSED, *UNCOMPOSED, *COVERED]
# Checks that compile a computation, and the algorithms that have them by default. With secure sums,
# the algorithms of the template `averaging` differ only in client work.
COSTLY = {
    check_nobody: ("pgfed", "pfedmb"),
    check_secure_sums: ("scaffold",),
    check_stock_runtime: ("pgfed",),
    check_vectorized: (),
    check_parts: ("pgfed",),
    check_compiled: (),
}


def _slow(condition):
    return [pytest.mark.slow] if condition else []


def _cases(always, rows=ROWS):
    """Returns rows as parameters, of which all but some are slow."""
    return [pytest.param(row, id=row.id, marks=_slow(row not in always)) for row in rows]


@pytest.fixture(scope="module", params=_cases(COMPOSED))
def row(request):
    """Returns a row; the module scope runs all its tests together, while its graphs are cached."""
    return request.param


def test_table_has_all_algorithms():
    assert {row.name for row in ROWS} == set(ALGORITHMS)


@pytest.mark.thorough_but_one
def test_algorithm_passes_all_checks(row):
    """Runs all checks on one process, and names each one that fails."""
    failures = []
    for check in testing.CHECKS:
        if check not in COSTLY:
            try:
                check(row.subject)
            except AssertionError as error:
                failures.append(f"{check.__name__}: {error}")
    assert not failures, "\n".join(failures)


def assert_bytes(row, subject):
    metrics = subject.first_round.metrics
    found = [metrics[f"bytes_{name}_per_client"] for name in ("down", "up")]
    assert found == [row.down, row.up]


def test_bytes_match_the_row(row):
    assert_bytes(row, row.subject)


@pytest.mark.parametrize("row", _cases(UNCOMPOSED, UNCOMPOSED))
def test_round_block_by_block_passes_checks_of_a_methods_own_work(row):
    check_partial_batches(row.uncomposed)
    if row.traits.get("needs_uploads"):
        check_empty_client(row.uncomposed)
    assert_bytes(row, row.uncomposed)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("check", "row"),
    [
        pytest.param(check, row, id=f"{check.__name__}-{row.id}", marks=_slow(row.id not in always))
        for check, always in COSTLY.items()
        for row in ROWS
    ],
)
def test_algorithm_passes_a_costly_check(check, row):
    check(row.subject)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", _cases(COMPOSED, [row for row in ROWS if not row.traits.get("needs_uploads")])
)
def test_noise_of_clients_is_summed_securely(row):
    """Covers all methods that average; `tests/privacy` always composes some of them."""
    options = {"noise_multiplier": 1.0, "clients_per_round": 3}
    algorithm = with_distributed_privacy(row.subject.algorithm, **options)
    process = compose(algorithm, testing.EXAMPLES_TYPE, testing.contract.SEED)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


@pytest.mark.thorough
def test_training_reduces_the_loss(row):
    clients = row.subject.clients((12, 12, 12))
    state, losses = row.subject.state, []
    for _ in range(20):
        state, states, metrics = row.subject.next(clients, state)
        clients = [client._replace(state=s) for client, s in zip(clients, states, strict=True)]
        losses.append(metrics["train"]["loss"])
    assert int(state.round_num) == 20
    if row.subject.reads_inputs:
        assert losses[-1] < 0.95 * losses[0]
    else:
        assert losses[-1] == losses[0] < np.log(3)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "row", _cases([*COMPOSED, *UNCOMPOSED], [row for row in ROWS if row.newcomer])
)
def test_new_client_has_the_shared_part_and_an_initial_own_part(row):
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

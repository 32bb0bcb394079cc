"""Tests methods on a network with batch normalisation against NumPy."""

import copy

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import batches_of, cross_entropy
from tests.federation import COHORTS, assert_close, eager, local_sgd, make_client, run_rounds
from tests.marks import slow
from tff_pfl import algorithms, runtime
from tff_pfl.local import ClientContext, Examples, evaluate, scan_batches, trees
from tff_pfl.local.examples import examples_type
from tff_pfl.models import from_keras
from tff_pfl.templates import ClientOutput, averaging, compose
from tff_pfl.templates.errors import StatisticsError

RATE, EPOCHS, BATCH = 0.3, 2, 4
MOMENTUM, EPSILON = 0.8, 0.01
SIZES = (5, 7, 3)  # with partial batches
RNG = np.random.default_rng(0)
XS = [RNG.normal(i, 1 + i, size=(n, 4)).astype(np.float32) for i, n in enumerate(SIZES)]
YS = [RNG.integers(0, 3, n).astype(np.int32) for n in SIZES]
EXAMPLES = [Examples(x, y, np.int32(len(y))) for x, y in zip(XS, YS, strict=True)]


def network():
    return tf.keras.Sequential(
        [
            tf.keras.Input((4,)),
            tf.keras.layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON, name="norm"),
            tf.keras.layers.Dense(3, name="head"),
        ]
    )


@pytest.fixture(scope="module")
def model():
    return from_keras(network, input_shape=(4,))


LOCAL = local_sgd(RATE, EPOCHS, BATCH)


def outputs(w, x, mean, variance):
    normal = (x - mean) / np.sqrt(variance + EPSILON)
    hidden = w["norm"]["gamma"] * normal + w["norm"]["beta"]
    return normal, hidden, hidden @ w["head"]["kernel"] + w["head"]["bias"]


def descended(w, client, round_num, layers=("norm", "head"), pull=0.0, centre=None):
    """Trains `layers`: NumPy's gradient descent, and Keras' rule for their moving statistics."""
    w = copy.deepcopy(w)
    for rows in batches_of(SIZES[client], client, round_num, epochs=EPOCHS, batch_size=BATCH):
        x, y = XS[client][rows].astype(np.float64), YS[client][rows]
        mean, variance = x.mean(axis=0), x.var(axis=0)
        normal, hidden, logits = outputs(w, x, mean, variance)
        _, slope = cross_entropy(logits, y)
        upper = slope @ w["head"]["kernel"].T
        gradient = {
            "norm": {"gamma": (upper * normal).sum(axis=0), "beta": upper.sum(axis=0)},
            "head": {"kernel": hidden.T @ slope, "bias": slope.sum(axis=0)},
        }
        for layer in layers:
            for name, g in gradient[layer].items():
                regular = pull * (w[layer][name] - centre[layer][name]) if pull else 0.0
                w[layer][name] = w[layer][name] - RATE * (g + regular)
        if "norm" in layers:
            for name, new in (("moving_mean", mean), ("moving_variance", variance)):
                w["norm"][name] = MOMENTUM * w["norm"][name] + (1 - MOMENTUM) * new
    return w


def mean(models, weights):
    return {
        layer: {
            name: np.average([m[layer][name] for m in models], axis=0, weights=weights)
            for name in models[0][layer]
        }
        for layer in models[0]
    }


def start_of(model):
    return {
        layer: {name: np.asarray(w, np.float64) for name, w in weights.items()}
        for layer, weights in model.init(0).items()
    }


def assert_weights(found, expected):
    for layer in expected:
        for name, value in expected[layer].items():
            assert_close(found[layer][name], value)


def rounds(model, method, cohorts=COHORTS, **options):
    process = eager(method, model, LOCAL, **options)
    clients = [make_client(process, i, examples) for i, examples in enumerate(EXAMPLES)]
    for state, now in run_rounds(process, clients, cohorts):
        yield state, process.personalize(state, now)


def first_round(model, method, **options):
    return next(rounds(model, method, **options))


@pytest.mark.thorough
def test_fedavg_averages_statistics_over_three_rounds(model):
    shared = start_of(model)
    for round_num, (state, _) in enumerate(rounds(model, "fedavg")):
        cohort = COHORTS[round_num]
        ends = [descended(shared, i, round_num) for i in cohort]
        shared = mean(ends, [SIZES[i] for i in cohort])
        assert_weights(state.algorithm.weights, shared)
    norm = shared["norm"]
    logits = outputs(shared, XS[1], norm["moving_mean"], norm["moving_variance"])[2]
    loss, _ = cross_entropy(logits, YS[1])
    found = evaluate(model, state.algorithm.weights, EXAMPLES[1], batch_size=4)
    assert_close(found["loss"].mean, loss)


@pytest.mark.thorough
def test_fedbn_keeps_statistics_over_three_rounds(model):
    start = start_of(model)
    head, norms = start["head"], [start["norm"]] * 3
    for round_num, (_, personal) in enumerate(rounds(model, "fedbn")):
        ends = {
            i: descended({"head": head, "norm": norms[i]}, i, round_num) for i in COHORTS[round_num]
        }
        for i, end in ends.items():
            norms[i] = end["norm"]
        head = mean([{"head": end["head"]} for end in ends.values()], None)["head"]
        for i in range(3):
            assert_weights(personal[i], {"head": head, "norm": norms[i]})


@pytest.mark.thorough
def test_ditto_trains_both_models_with_statistics_of_their_own(model):
    """The pull to the shared model does not move statistics."""
    shared = own = start_of(model)
    both = rounds(model, "ditto", [(0, 1), (0, 1)], lambda_=0.5)
    for round_num, (state, personal) in enumerate(both):
        own = descended(own, 1, round_num, pull=0.5, centre=shared)
        shared = mean([descended(shared, i, round_num) for i in (0, 1)], SIZES[:2])
        assert_weights(personal[1], own)
        assert_weights(state.algorithm.weights, shared)


@pytest.mark.thorough
def test_fedrep_assigns_the_statistics_of_the_part_that_it_trains(model):
    start = start_of(model)
    state, personal = first_round(model, "fedrep")
    heads = [descended(start, i, 0, layers=["head"]) for i in (0, 1)]
    ends = [descended(head, i, 0, layers=["norm"]) for i, head in enumerate(heads)]
    body = {"norm": mean(ends, SIZES[:2])["norm"]}
    assert_weights(state.algorithm.weights, body)
    assert_weights(personal[1], {**body, "head": heads[1]["head"]})


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fd", "fedgh"])
def test_first_round_assigns_statistics_of_the_own_model(model, method):
    """Nothing comes from the server in the first round, which is that of Local."""
    _, personal = first_round(model, method)
    for i in COHORTS[0]:
        assert_weights(personal[i], descended(start_of(model), i, 0))


@pytest.mark.thorough
def test_pfedme_assigns_statistics_of_the_personal_model(model):
    """Two personal steps on a batch move the statistics twice, the pull does not."""
    options = {"lambda_": 1.0, "personal_learning_rate": 0.1, "personal_steps": 2}
    _, personal = first_round(model, "pfedme", **options)
    norm = start_of(model)["norm"]
    for rows in batches_of(SIZES[1], 1, 0, epochs=EPOCHS, batch_size=BATCH):
        x = XS[1][rows].astype(np.float64)
        for _ in range(2):
            for name, new in (("moving_mean", x.mean(axis=0)), ("moving_variance", x.var(axis=0))):
                norm[name] = MOMENTUM * norm[name] + (1 - MOMENTUM) * new
    statistics = {name: norm[name] for name in ("moving_mean", "moving_variance")}
    assert_weights(personal[1], {"norm": statistics})


@pytest.mark.thorough
def test_feddbe_assigns_statistics_also_with_a_bias_and_a_pull(model):
    """The statistics of inputs are those of FedAvg in later rounds, too."""
    both = zip(rounds(model, "feddbe", kappa=1.0), rounds(model, "fedavg"), strict=True)
    for (found, _), (expected, _) in both:
        for name in ("moving_mean", "moving_variance"):
            norms = [state.algorithm.weights["norm"][name] for state in (found, expected)]
            assert_close(*norms)
    heads = [state.algorithm.weights["head"]["kernel"] for state in (found, expected)]
    assert np.max(np.abs(np.subtract(*heads))) > 1e-3


@pytest.mark.thorough
def test_apfl_keeps_the_statistics_of_the_mixture(model):
    state, personal = first_round(model, "apfl")
    ends = [descended(start_of(model), i, 0) for i in COHORTS[0]]
    shared = mean(ends, SIZES[:2])
    assert_weights(state.algorithm.weights, shared)
    for name in ("moving_mean", "moving_variance"):
        assert_close(personal[1]["norm"][name], ends[1]["norm"][name])


def test_train_needs_to_know_which_statistics_to_assign(model):
    def client_work(weights, state, examples, context):
        def gradient(both, batch, carry):
            gradients = [model.gradient(w, batch) for w in both]
            return tuple(g for g, _ in gradients), gradients[0][1], carry

        trained = LOCAL.train(model, (weights, weights), examples, context, gradient=gradient)
        return ClientOutput(state=(), upload=trained.weights[0])

    algorithm = averaging(model.init, client_work, lambda weights, *_: weights)
    with pytest.raises(ValueError, match="another structure. Pass `assign`"):
        context = ClientContext(tf.constant(0), tf.constant(0), tf.constant([0, 0]))
        algorithm.exchanges[0].client_work(model.init(0), (), EXAMPLES[0], context)


def test_steps_that_never_assign_statistics_are_refused(model):
    def client_work(weights, state, examples, context):
        def step(carry, batch):
            return trees.subtract(carry, model.gradient(carry, batch)[0])

        options = {"epochs": 1, "batch_size": BATCH, "seed": context.seed}
        return ClientOutput(state=(), upload=scan_batches(step, weights, examples, **options))

    algorithm = averaging(model.init, client_work, lambda weights, *_: weights)
    with pytest.raises(StatisticsError, match="training_gradient"):
        compose(algorithm, examples_type((4,), np.float32))


@pytest.mark.thorough
def test_fedem_assigns_the_statistics_of_each_component(model):
    """The shares of components in examples do not move statistics."""
    state, personal = first_round(model, "fedem", num_components=2)
    ends = [descended(start_of(model), i, 0) for i in COHORTS[0]]
    expected = mean(ends, SIZES[:2])["norm"]
    for name in ("moving_mean", "moving_variance"):
        assert_close(state.algorithm.weights["norm"][name], np.stack([expected[name]] * 2))
        assert_close(personal[1]["norm"][name], np.stack([expected[name]] * 2))


FEDERATION = {"num_clients": 3}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedsam", {}),
        ("fedprox", {"mu": 1.0}),
        ("fedphp", {"lambda_": 0.5}),
        ("mr_mtl", {"lambda_": 1.0}),
        ("fedlc", {}),
        ("fedntd", {}),
        ("fedgen", {"generator_steps": 1}),
        ("per_fedavg", {"variant": "hessian_free"}),
        ("scaffold", FEDERATION),
        ("feddyn", FEDERATION),
        ("fedcac", FEDERATION),
        ("floco", {**FEDERATION, "endpoints": 2}),
        ("pgfed", {**FEDERATION, "clients_per_round": 2}),
        ("plgu_lf", {}),
        ("fedcp", {}),
        ("gpfl", {}),
        ("pfedmb", {"branches": 2}),
        ("confree", {}),
    ],
)
def test_statistics_of_a_round_do_not_depend_on_the_direction(model, method, options):
    """The statistics of inputs are those of FedAvg, whatever else a method changes."""
    state, _ = first_round(model, method, **options)
    ends = [descended(start_of(model), i, 0) for i in COHORTS[0]]
    is_uniform = method in ("plgu_lf", "scaffold", "feddyn", "confree")
    expected = mean(ends, None if is_uniform else SIZES[:2])["norm"]
    found = state.algorithm.weights["norm"]
    for name in ("moving_mean", "moving_variance"):
        assert_close(found[name], expected[name])


@pytest.mark.thorough
@pytest.mark.parametrize("create", [runtime.create_graph_context, slow(runtime.create_cpp_context)])
def test_runtimes_give_the_same_statistics(model, create):
    with tff.framework.get_context_stack().install(create()):
        process = compose(
            algorithms.make("fedbn", model, LOCAL), examples_type((4,), np.float32), seed=0
        )
        clients = [make_client(process, i, examples) for i, examples in enumerate(EXAMPLES)]
        *_, (state, now) = run_rounds(process, clients, COHORTS)
        found = process.personalize(state, now)
    *_, (_, expected) = rounds(model, "fedbn")
    assert_close([one["norm"] for one in found], [one["norm"] for one in expected])

"""pFedMB: what it becomes at its ends, its mixtures, and what its clients send."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import tree_analysis

from tests.federation import (
    EXAMPLES_TYPE,
    assert_close,
    assert_equal,
    last,
    leaves,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
    traced,
    with_shared,
)
from tff_pfl.algorithms import make
from tff_pfl.templates import compose, with_aggregator

MODEL = tiny_model()
LAYERS = ("dense1", "head")
BRANCHES = 3
SIZES = (4, 6, 3)
COHORTS = ((0, 1), (1, 2), (0, 2))  # who takes part in each round
LOCAL = local_sgd(learning_rate_decay=0.9)
PARAMETRIZATIONS = ("softmax", "projection")
each_parametrization = pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)


@functools.cache
def build(algorithm="pfedmb", local=LOCAL, **options):
    if algorithm == "pfedmb":
        options = {"branches": BRANCHES, **options}
    return traced(algorithm, MODEL, local, **options, seed=1)


def run(process, clients=None, state=None):
    """`(server state, clients)` after some rounds."""
    return last(run_rounds(process, clients or make_clients(process, SIZES), COHORTS, state))


@functools.cache
def trained(**options):
    return run(build(**options))


def frozen(**options):
    """Clients whose alpha, which is their state, stays as it is."""
    return build(parametrization="projection", alpha_epochs=0, **options)


def with_alpha(clients, alphas):
    """Clients with given coefficients, `[L, B]` each."""
    return [
        client._replace(state=client.state._replace(coefficients=np.float32(alpha)))
        for client, alpha in zip(clients, alphas, strict=True)
    ]


def alphas_of(process, clients):
    """`[number of clients, L, B]`."""
    rows = process.client_snapshot([client.state for client in clients])
    return np.array([list(of_client.values()) for of_client in rows])


def differ(a, b):
    return max(np.max(np.abs(x - y)) for x, y in zip(leaves(a), leaves(b), strict=True)) > 1e-3


class TestEquivalences:
    @pytest.mark.parametrize(
        ("alpha_weighted", "parametrization"), [(True, "softmax"), (False, "projection")]
    )
    def test_of_one_branch_it_is_fedavg(self, alpha_weighted, parametrization):
        process = build(branches=1, alpha_weighted=alpha_weighted, parametrization=parametrization)
        state, clients = run(process)
        expected, _ = run(build("fedavg"))
        for name in LAYERS:
            for kind, branches in state.algorithm.weights[name].items():
                assert_close(branches, expected.algorithm.weights[name][kind][np.newaxis], 1e-6)
        np.testing.assert_array_equal(alphas_of(process, clients), np.ones((3, 2, 1)))
        assert_close(process.global_weights(state), expected.algorithm.weights, 1e-6)
        assert_close(process.personalize(state, clients), [expected.algorithm.weights] * 3, 1e-6)

    def test_with_equal_alpha_both_averages_are_the_same(self):
        alpha = [[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]]
        other = [[0.6, 0.1, 0.3], [0.1, 0.1, 0.8]]
        for alphas, same in (([alpha] * 3, True), ([alpha, other, alpha], False)):
            ends = []
            for alpha_weighted in (True, False):
                process = frozen(alpha_weighted=alpha_weighted)
                clients = with_alpha(make_clients(process, SIZES), alphas)
                state, clients = run(process, clients)
                assert_close(alphas_of(process, clients), np.array(alphas), 1e-7)
                ends.append(state.algorithm.weights)
            if same:
                assert_close(*ends, tolerance=1e-6)
            else:
                assert differ(*ends)

    def test_with_a_branch_for_each_group_it_is_ifca_of_fixed_clusters(self):
        """One of the branches is of no group, another of one that is not in every cohort."""
        groups = (0, 2, 0)
        process = frozen()
        one_hot = [np.eye(BRANCHES)[[group] * 2] for group in groups]
        state, clients = run(process, with_alpha(make_clients(process, SIZES), one_hot))
        options = {"num_clusters": BRANCHES, "fixed_clusters": groups, "weighting": "num_examples"}
        ifca = build("ifca", num_clients=3, **options)
        expected, members = run(ifca)
        assert_close(state.algorithm.weights, expected.algorithm.models, 1e-6)
        models = process.personalize(state, clients)
        assert_close(models, ifca.personalize(expected, members), 1e-6)
        assert differ(models[0], models[1])
        start = process.initialize().algorithm.weights
        for name in LAYERS:
            for kind, branches in state.algorithm.weights[name].items():
                np.testing.assert_array_equal(branches[1], start[name][kind][1])

    def test_equal_branches_never_specialise(self):
        """They are FedAvg whose rate is a part of B."""
        process = build()
        start = process.initialize()
        equal = tf.nest.map_structure(
            lambda w: np.repeat(w[:1], BRANCHES, 0), start.algorithm.weights
        )
        state, clients = run(process, state=with_shared(start, equal))
        slower = local_sgd(0.5 / BRANCHES, learning_rate_decay=0.9)
        expected, _ = run(build("fedavg", local=slower))
        for name in LAYERS:
            for kind, branches in state.algorithm.weights[name].items():
                assert_close(
                    branches, np.stack([expected.algorithm.weights[name][kind]] * BRANCHES)
                )
        np.testing.assert_allclose(alphas_of(process, clients), 1 / BRANCHES, rtol=1e-5)
        assert np.ptp(alphas_of(process, trained()[1]), axis=-1).min() > 1e-3

    @each_parametrization
    def test_the_order_of_branches_does_not_matter(self, parametrization):
        process, order = build(parametrization=parametrization), [2, 0, 1]
        state, clients = trained(parametrization=parametrization)
        permuted = tf.nest.map_structure(lambda w: w[order], state.algorithm.weights)
        assert differ(permuted, state.algorithm.weights)
        reordered = with_alpha(clients, [c.state.coefficients[:, order] for c in clients])
        output = process.next(state, clients)
        other = process.next(with_shared(state, permuted), reordered)
        expected = tf.nest.map_structure(lambda w: w[order], output.state.algorithm.weights)
        assert_close(other.state.algorithm.weights, expected)
        for found, client in zip(other.clients, output.clients, strict=True):
            assert_close(found.coefficients, client.coefficients[:, order])

    def test_a_rate_of_0_is_no_epoch(self):
        options = {"parametrization": "projection", "alpha_learning_rate": 0.0}
        assert_equal(trained(**options)[0].algorithm.weights, run(frozen())[0].algorithm.weights)


class TestMixtures:
    @each_parametrization
    def test_they_stay_on_the_simplex(self, parametrization):
        options = {"parametrization": parametrization, "alpha_learning_rate": 6.0}
        alphas = alphas_of(build(**options), trained(**options)[1])
        assert np.all(alphas >= 0)
        np.testing.assert_allclose(np.sum(alphas, axis=-1), 1, rtol=1e-5)
        assert np.max(alphas) > 0.5
        assert np.any(alphas == 0) == (parametrization == "projection")

    @each_parametrization
    def test_snapshots_have_a_row_for_each_layer(self, parametrization):
        process = build(parametrization=parametrization)
        states = [client.state for client in trained(parametrization=parametrization)[1]]
        for found, state in zip(process.client_snapshot(states), states, strict=True):
            alpha = state.coefficients
            if parametrization == "softmax":
                alpha = np.exp(alpha) / np.sum(np.exp(alpha), axis=-1, keepdims=True)
            assert list(found) == ["alpha/dense1", "alpha/head"]
            assert_close(list(found.values()), list(alpha))

    def test_a_row_that_all_layers_share(self):
        process = build(shared_alpha=True)
        state, clients = trained(shared_alpha=True)
        assert clients[0].state.coefficients.shape == (1, BRANCHES)
        (snapshot,) = process.client_snapshot([clients[0].state])
        assert list(snapshot) == ["alpha/all layers"]
        (row,) = snapshot.values()
        assert np.ptp(row) > 1e-3
        (model,) = process.personalize(state, clients[:1])
        expected = tf.nest.map_structure(lambda w: np.tensordot(row, w, 1), state.algorithm.weights)
        assert_close(model, expected)

    def test_an_absent_client_keeps_its_own(self):
        process = build()
        rounds = list(run_rounds(process, make_clients(process, SIZES), COHORTS))
        (_, first), (_, second), (_, third) = rounds
        assert_equal(first[2].state, process.initialize_client(2))
        assert_equal(second[0].state, first[0].state)
        assert_equal(third[1].state, second[1].state)
        for before, after in ((first[1], second[1]), (second[0], third[0])):
            assert differ(before.state.coefficients, after.state.coefficients)

    def test_models_are_mixtures_of_the_current_branches(self):
        """Of equal parts, for a client never seen and as the global model."""
        process, (state, clients) = build(), trained()
        mean = tf.nest.map_structure(lambda w: np.mean(w, axis=0), state.algorithm.weights)
        assert_close(process.global_weights(state), mean)
        new = make_client(process, 7, clients[0].data)
        *own, common = process.personalize(state, [*clients, new])
        assert_close(common, mean)
        for model, alpha in zip(own, alphas_of(process, clients), strict=True):
            for name, row in zip(LAYERS, alpha, strict=True):
                for kind, branches in state.algorithm.weights[name].items():
                    assert_close(model[name][kind], np.tensordot(row, branches, 1))
            assert differ(model, mean)

    def test_messages_are_b_times_those_of_fedavg(self):
        process = build()
        metrics = process.next(process.initialize(), make_clients(process, SIZES)).metrics
        branches = 4 * BRANCHES * MODEL.num_weights
        assert metrics["bytes_down_per_client"] == branches
        assert metrics["bytes_up_per_client"] == branches + 4 * (2 * BRANCHES + 1)


def tensors(type_spec):
    """The sizes of all tensors of a type, those of functions left out; `None` for open ones."""
    if isinstance(type_spec, tff.types.TensorType):
        yield None if None in type_spec.shape else int(np.prod(type_spec.shape))
    elif isinstance(type_spec, tff.types.FederatedType):
        yield from tensors(type_spec.member)
    elif isinstance(type_spec, tff.types.StructType):
        for _, element in tff.structure.iter_elements(type_spec):
            yield from tensors(element)


@functools.cache
def composed(secure):
    """The whole computation; with secure sums in the exchange's aggregator, or as it is."""
    algorithm = make("pfedmb", MODEL, LOCAL, branches=BRANCHES)
    if secure:
        algorithm = with_aggregator(algorithm, tff.aggregators.SecureSumFactory(64.0, -64.0))
    return compose(algorithm, EXAMPLES_TYPE, seed=1)


def sizes_of_sums(process, find):
    """How often tensors of each size are summed."""
    calls = find(process.next.to_building_block())
    sizes = [size for call in calls for size in tensors(call.argument.type_signature)]
    return collections.Counter(sizes)


class TestSecureSums:
    """With them, no plain update leaves a client."""

    def test_what_is_summed_in_the_clear(self):
        """Without them uploads, and scalars: counts and metrics; and the cohort. Else nothing."""
        weights = [BRANCHES * np.size(w) for w in leaves(MODEL.init(0))]
        upload = collections.Counter([*weights, *[BRANCHES] * len(LAYERS)])
        plain = sizes_of_sums(
            composed(secure=False), tree_analysis.find_unsecure_aggregation_in_tree
        )
        assert not upload - plain
        assert set(plain - upload) == {1, None}
        secure = composed(secure=True)
        assert not sizes_of_sums(secure, tree_analysis.find_unsecure_aggregation_in_tree)
        hidden = sizes_of_sums(secure, tree_analysis.find_secure_aggregation_in_tree)
        assert not upload - hidden

    @pytest.mark.slow  # that of the aggregator has a test of its own
    def test_a_round_is_the_same_but_for_quantization(self):
        """As that of equal weights: an aggregator that takes none weighs all clients the same."""
        uniform, secure = build(weighting="uniform"), composed(secure=True)
        state, clients = trained()
        expected = uniform.next(state, clients).state.algorithm.weights
        state = state._replace(aggregators=secure.initialize().aggregators)
        assert_close(secure.next(state, clients).state.algorithm.weights, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parametrization": "softmx"}, "Unknown parametrization 'softmx'. Did you mean 'softmax'"),
        ({"branches": 0}, "branches must be a whole number of at least 1, got 0"),
        ({"init_scale": 0.0}, "init_scale must be a finite number above 0, got 0.0"),
        ({"branched_layers": ("hed",)}, "'hed'. Did you mean 'head'"),
        ({"branched_layers": "head"}, "names of layers"),
        ({"weighting": "unifrm"}, "Unknown weighting 'unifrm'. Did you mean 'uniform'"),
    ],
    ids=str,
)
def test_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        build.__wrapped__(**options)

"""What every algorithm of the table promises. A new algorithm adds a row to `CASES` at most."""

import collections
import functools
from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    COVERED,
    EXAMPLES_TYPE,
    IMAGE_SHAPE,
    assert_equal,
    leaves,
    local_sgd,
    make_client,
    make_clients,
    random_examples,
    tiny_model,
)
from tff_pfl.algorithms import ALGORITHMS, build, builder, hyperparameters
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.local import Examples, examples_type, trees
from tff_pfl.templates import PersonalizedProcess

# Each algorithm with its defaults, and the variants that take other paths.
CASES = [
    pytest.param((name, {}), id=name, marks=[pytest.mark.slow] if name in COVERED else [])
    for name in ALGORITHMS
] + [
    pytest.param((name, options), id="-".join([name, *options]))
    for name, options in (
        ("fedavg", {"personalized": "local", "weighting": "uniform"}),
        ("fedper", {"personal_layers": ()}),
        ("fedper", {"personal_layers": ("dense1", "head")}),
    )
]
# Where the defaults do not suit these tests: the learning rate is large; all examples are to count.
# FedAMP's pull is next to nothing.
PULL = {"lambda_": 0.1, "alpha": 0.3}
OPTIONS = {
    "fedamp": {**PULL, "sigma": 1.0, "distance_scale": "median"},
    "heur_fedamp": PULL,
    "pfedme": {"lambda_": 1.0},
    "plgu_grep": {"body_steps": None},
}
# Their rounds draw nothing: they use each client's exact gradient.
EXACT = ("fedpg", "s_fedpg")
# Every client's weights are generated.
GENERATED = ("pfedhn", "pfedhn_pc", "plgu_ghn")
# The server hears who takes part before they train.
ANNOUNCED = ("fedamp", "heur_fedamp")


class Subject:
    """An algorithm, built as rarely as can be for all tests of this module."""

    def __init__(self, name, options):
        self.name = name
        self.options = OPTIONS.get(name, {}) | options
        self.model = tiny_model()
        self.process = self.build()

    def build(self, examples=EXAMPLES_TYPE, seed=3):
        return build(
            self.name,
            self.model,
            examples,
            local_sgd(),
            num_clients=8,
            clients_per_round=3,
            seed=seed,
            **self.options,
        )

    @functools.cached_property
    def float_process(self):
        """The same, built again, on float inputs, which can hold what is no number."""
        return self.build(examples_type(IMAGE_SHAPE, np.float32))


@pytest.fixture(scope="module", params=CASES)
def subject(request):
    return Subject(*request.param)


def with_floats(client):
    return client._replace(data=client.data._replace(x=client.data.x.astype(np.float32)))


def test_types(subject):
    process = subject.process
    assert isinstance(process, PersonalizedProcess)
    assert isinstance(process, tff.templates.IterativeProcess)
    state_type = process.initialize.type_signature.result
    client_type = process.client_type
    assert state_type.placement is tff.SERVER
    assert tff.structure.name_list(client_type) == ["client_id", "state", "data"]
    tff.test.assert_types_identical(client_type.client_id, tff.types.TensorType(np.int32))
    tff.test.assert_types_identical(client_type.data, EXAMPLES_TYPE)
    parameter = tff.types.StructWithPythonType(
        [("state", state_type), ("clients", tff.types.FederatedType(client_type, tff.CLIENTS))],
        collections.OrderedDict,
    )
    result = process.next.type_signature.result
    tff.test.assert_types_identical(process.next.type_signature.parameter, parameter)
    tff.test.assert_types_identical(result.state, state_type)
    tff.test.assert_types_identical(
        result.clients, tff.types.FederatedType(client_type.state, tff.CLIENTS)
    )
    assert result.metrics.placement is tff.SERVER
    tff.test.assert_types_identical(
        process.initialize_client.type_signature,
        tff.types.FunctionType(np.int32, client_type.state),
    )
    tff.test.assert_types_identical(process.personalize.type_signature.parameter, parameter)
    weights_type = subject.model.weights_type
    tff.test.assert_types_identical(
        process.personalize.type_signature.result,
        tff.types.FederatedType(weights_type, tff.CLIENTS),
    )
    if process.global_weights is not None:
        tff.test.assert_types_identical(
            process.global_weights.type_signature,
            tff.types.FunctionType(state_type.member, weights_type),
        )


def test_a_round_is_a_function_of_its_arguments(subject):
    clients = make_clients(subject.process, [6, 9])
    state = subject.process.initialize()
    first = subject.process.next(state, clients)
    again = subject.process.next(state, clients)
    assert_equal(first, again)
    rebuilt = subject.float_process.next(state, list(map(with_floats, clients)))
    assert_equal(first, rebuilt)


@pytest.mark.slow  # one more of each algorithm is built
def test_a_round_is_a_function_of_the_seed(subject):
    clients = make_clients(subject.process, [6, 9])
    state = subject.process.initialize()
    first = subject.process.next(state, clients)
    other = subject.build(seed=4).next(state, clients)
    is_random = subject.name not in EXACT
    assert all(map(np.array_equal, leaves(first), leaves(other))) != is_random


def test_training_reduces_the_loss(subject):
    clients = make_clients(subject.process, [12, 12])
    state = subject.process.initialize()
    losses = []
    for _ in range(8):
        state, states, metrics = subject.process.next(state, clients)
        clients = [client._replace(state=s) for client, s in zip(clients, states, strict=True)]
        losses.append(metrics["train"]["loss"])
    assert int(state.round_num) == 8
    assert losses[-1] < 0.9 * losses[0]


def test_the_order_of_clients_does_not_matter(subject):
    clients = make_clients(subject.process, [6, 9])
    state = subject.process.initialize()
    forward = subject.process.next(state, clients)
    backward = subject.process.next(state, clients[::-1])
    for a, b in zip(leaves(forward.state), leaves(backward.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert_equal(forward.clients, backward.clients[::-1])


def test_padding_does_not_matter(subject):
    def pad(examples: Examples) -> Examples:
        garbage = random_examples(5, seed=99)
        return examples._replace(
            x=np.concatenate([examples.x, garbage.x]), y=np.concatenate([examples.y, garbage.y])
        )

    clients = make_clients(subject.process, [6, 9])
    padded = [client._replace(data=pad(client.data)) for client in clients]
    state = subject.process.initialize()
    assert_equal(subject.process.next(state, clients), subject.process.next(state, padded))


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_clients_of_few_examples(subject, size):
    """Less than a batch, exactly one, one and a bit."""
    client = make_client(subject.process, 0, random_examples(size))
    output = subject.process.next(subject.process.initialize(), [client])
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(output))
    assert output.metrics["train"]["num_examples"] == size
    assert output.metrics["train"]["num_clients"] == 1


def _without_counts(metrics):
    return {k: v for k, v in metrics["train"].items() if not k.startswith("num_")}


def test_a_client_with_no_examples_changes_nothing(subject):
    clients = make_clients(subject.process, [6, 0, 9])
    state = subject.process.initialize()
    output = subject.process.next(state, clients)
    without = subject.process.next(state, [clients[0], clients[2]])
    assert_equal(output.state, without.state)
    assert_equal(output.clients[1], clients[1].state)
    assert_equal(_without_counts(output.metrics), _without_counts(without.metrics))
    assert output.metrics["train"]["num_empty"] == 1
    assert output.metrics["train"]["num_clients"] == 2
    assert output.metrics["train"]["num_nonfinite"] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_client_that_is_not_finite_is_left_out_and_counted(subject, bad):
    process = subject.float_process
    clients = list(map(with_floats, make_clients(process, [6, 5, 9])))
    clients[1].data.x[2:4, 0, 0, 0] = bad  # one of these may be for validation
    state = process.initialize()
    output = process.next(state, clients)
    assert_equal(output.clients[1], clients[1].state)
    assert output.metrics["train"]["num_nonfinite"] == 1
    assert output.metrics["train"]["num_empty"] == 0
    if subject.name in ANNOUNCED:  # it was a neighbour of the others
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves(output))
        for i, own in enumerate(output.clients):
            assert_equal(trees.row(output.state.algorithm.models, i), own.model)
        return
    without = process.next(state, [clients[0], clients[2]])
    assert_equal(output.state, without.state)
    assert_equal(output.clients[0::2], without.clients)
    assert_equal(_without_counts(output.metrics), _without_counts(without.metrics))


def test_a_cohort_of_clients_without_examples_keeps_the_server_state(subject):
    clients = make_clients(subject.process, [0, 0])
    state = subject.process.initialize()
    output = subject.process.next(state, clients)
    assert_equal(output.state.algorithm, state.algorithm)
    assert output.metrics["train"]["server_kept"] == 1
    assert int(output.state.round_num) == 1


def test_a_client_never_seen(subject):
    process = subject.process
    assert_equal(process.initialize_client(7), process.initialize_client(7))
    clients = make_clients(process, [6, 9])
    state = process.next(process.initialize(), clients).state
    newcomer = make_client(process, 7, random_examples(5))
    (weights,) = process.personalize(state, [newcomer])
    if subject.name in GENERATED:
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves(weights))
    elif process.global_weights is not None:
        assert_equal(weights, process.global_weights(state))
    elif subject.name == "ifca":
        models = state.algorithm.models
        assert any(
            all(map(np.array_equal, leaves(weights), leaves(trees.row(models, j))))
            for j in range(2)
        )
    else:  # what is personal is as it was at the start, for all clients
        initial = subject.model.init(3)
        shared = state.algorithm if isinstance(state.algorithm, Mapping) else {}
        assert_equal(weights, {layer: shared.get(layer, initial[layer]) for layer in initial})


def test_a_client_that_is_absent_keeps_its_state(subject):
    process = subject.process
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    store = ClientStateStore(process.initialize_client, process.client_state_type)
    source = CohortDataSource(dataset, store, process.client_type, seed=1)
    iterator, state = source.iterator(), process.initialize()
    for _ in range(3):
        before = store.get(range(5))
        output = process.next(state, iterator.select(2))
        state = output.state
        iterator.update(output.clients)
        after = store.get(range(5))
        for client_id in range(5):
            if client_id not in iterator.cohort:
                assert_equal(before[client_id], after[client_id])
        assert_equal([after[i] for i in iterator.cohort], output.clients)


def test_bytes_are_those_of_the_model(subject):
    metrics = subject.process.next(
        subject.process.initialize(), make_clients(subject.process, [4])
    ).metrics
    model_bytes = 4 * subject.model.num_weights
    weight_bytes = 4
    expected = (model_bytes, model_bytes + weight_bytes)
    if subject.name == "local":
        expected = (0, 0)
    elif subject.name in GENERATED:
        head = 4 * (5 * 3 + 3) if subject.name == "pfedhn_pc" else 0
        expected = (model_bytes - head, model_bytes - head + weight_bytes + 4)
    elif subject.name in ANNOUNCED:  # in the second exchange; in the first, the id
        expected = (model_bytes, model_bytes + 2 * (4 + weight_bytes))
    elif subject.name == "fedfomo":
        # Others' models, ids and whether there is one. Own model and id, their ids, M ratings.
        others = 4
        expected = (
            others * (model_bytes + 4 + 1),
            model_bytes + 4 + 4 * others + 4 * (1 + others) + weight_bytes,
        )
    elif subject.name == "ifca":  # all models; change and cluster
        expected = (2 * model_bytes, model_bytes + 4 + weight_bytes)
    elif subject.name == "pfedmb":  # all branches; their changes and each layer's alpha
        branches, layers = 5, 2
        expected = (
            branches * model_bytes,
            branches * model_bytes + layers * branches * 4 + weight_bytes,
        )
    elif subject.name in ("fedper", "fedrep", "plgu_grep"):
        head = 4 * (5 * 3 + 3)
        shared = {None: model_bytes - head, (): model_bytes}.get(
            subject.options.get("personal_layers"), 0
        )
        expected = (shared, shared + weight_bytes if shared else 0)
    elif subject.name.startswith("pgfed"):
        # Weights and auxiliary gradient, how many sent theirs. Change and gradient, intercept, id.
        expected = (2 * model_bytes + 4, 2 * model_bytes + weight_bytes + 8)
        if subject.name.endswith("_ce"):
            steps = 4
            expected = (expected[0], expected[1] + steps)
        else:  # also the mean gradient, and for each client of a cohort two numbers, or one
            expected = (expected[0] + model_bytes + 4 * 2 * 3, expected[1] + 4 * 3)
    elif subject.name in ("fedpg", "s_fedpg"):
        # Weights and direction; round, step and gamma. Gradient, loss, id, whether it is new.
        expected = (2 * model_bytes + 12, model_bytes + weight_bytes + 9)
        if subject.name == "s_fedpg":
            ladder = losses = 4 * 16
            expected = (expected[0] + ladder + 4, expected[1] + losses + 4 + weight_bytes)
    assert (metrics["bytes_down_per_client"], metrics["bytes_up_per_client"]) == expected


def test_unknown_algorithms_and_the_hyperparameters_of_known_ones():
    with pytest.raises(ValueError, match="Unknown algorithm 'dito'. Did you mean 'ditto'"):
        builder("dito")
    assert hyperparameters("ditto") == {
        "lambda_": 0.1,
        "personal_epochs": None,
        "weighting": "num_examples",
    }

"""Tests algorithms with compressed uploads, with and without error feedback."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal, leaves
from tests.marks import slow, together
from tests.templates.mean_process import algorithm as algorithm_of
from tests.templates.mean_process import clients, examples, mean_exchange
from tff_pfl import testing
from tff_pfl.algorithms import make
from tff_pfl.attacks.inner_product import inner_product
from tff_pfl.compression import Compensated, compressed, half, quantized, top_k
from tff_pfl.local import examples_type
from tff_pfl.templates import (
    AGGREGATORS,
    Client,
    ClientOutput,
    Exchange,
    compose,
    errors,
    with_aggregator,
)
from tff_pfl.testing import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
ALL = top_k(share=1)  # Lossless.
SIZES = (6, 5, 9)
# The methods differ in their averages: a mean, a counted mean, branches, a field.
METHODS = ("fedavg", "scaffold", "pgfed")
COVERED = ("pfedmb", "feddyn", "fedpac", "fedper")


def made(name):
    federation = {"num_clients": 8, "clients_per_round": 3}
    return make(name, testing.tiny_model(), testing.tiny_local(), **federation)


def rounds_of(algorithm, number=2, sizes=SIZES):
    """Returns the output of the last of several rounds of the same clients."""
    process = EagerProcess(algorithm, 1)
    state = process.initialize()
    states = [process.initialize_client(i) for i in range(len(sizes))]
    for _ in range(number):
        cohort = [
            Client(np.int32(i), states[i], testing.tiny_examples(size, i))
            for i, size in enumerate(sizes)
        ]
        output = process.next(state, cohort)
        state, states = output.state, output.clients
    return output


@functools.cache
def plain_rounds_of(name, number=2):
    return rounds_of(made(name), number)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "number"),
    [("fedavg", 2), *((n, 1) for n in METHODS[1:]), *(slow(n, 1) for n in COVERED)],
)
def test_lossless_compression_does_not_change_rounds(name, number):
    plain = plain_rounds_of(name, number)
    found = rounds_of(compressed(made(name), ALL, error_feedback=True), number)
    assert_close(found.state.algorithm, plain.state.algorithm, 1e-5)
    assert_close([state.own for state in found.clients], plain.clients, 1e-5)
    for state in found.clients:
        assert len(state.residuals) == 1
        assert not any(np.any(leaf) for leaf in leaves(state.residuals))


@pytest.mark.thorough
def test_compression_sends_less_and_learns_almost_the_same(name="fedavg"):
    plain = plain_rounds_of(name)
    found = rounds_of(compressed(made(name), quantized(bits=12)))
    assert found.metrics["bytes_up_per_client"] < plain.metrics["bytes_up_per_client"]
    assert_close(found.state.algorithm, plain.state.algorithm, 0.01)


@pytest.mark.thorough
def test_bytes_of_a_round_are_of_messages():
    size = testing.tiny_model().num_weights
    for compressor, expected in ((half(), 2 * size), (top_k(share=0.1), 8 * -(-size // 10))):
        metrics = rounds_of(compressed(made("fedavg"), compressor), 1, sizes=(3,)).metrics
        assert metrics["bytes_up_per_client"] == expected + 4  # The weight takes 4 bytes.
    without = rounds_of(made("pgfed"), 1, sizes=(3,)).metrics["bytes_up_per_client"]
    metrics = rounds_of(compressed(made("pgfed"), half()), 1, sizes=(3,)).metrics
    assert metrics["bytes_up_per_client"] == without - 2 * size  # PGFed's risk is not compressed.


# In the following tests, the server starts at [1, 2], which clients subtract from their values.


def mean_process(compressor, *, error_feedback=False, **options):
    exchange = mean_exchange(averaged=lambda server: server, **options)
    return EagerProcess(
        compressed(algorithm_of(exchange), compressor, error_feedback=error_feedback)
    )


def test_server_gets_the_decoded_mean_and_clients_keep_residuals():
    process = mean_process(top_k(share=0.5), error_feedback=True)
    cohort = clients(process, examples(5.0), examples(-8.0, -8.0, -8.0))
    output = process.next(process.initialize(), cohort)
    # Changes are [4, 3] once and [-9, -10] three times; the larger entry is sent.
    np.testing.assert_allclose(output.state.algorithm, [1 + 4 / 4, 2 - 30 / 4])
    lost = [state.residuals["train"] for state in output.clients]
    np.testing.assert_allclose(lost, [[0, 3], [-9, 0]])
    assert [state.own.count for state in output.clients] == [1, 1]


def test_residuals_wait_until_the_client_takes_part_again():
    process = mean_process(top_k(share=0.5), error_feedback=True)
    first, absent = clients(process, examples(5.0), examples(0.0))
    output = process.next(process.initialize(), [first, absent])
    assert list(output.clients[0].residuals["train"]) == [0, 3]
    kept = first._replace(state=output.clients[0])
    state = process.next(output.state, [absent]).state
    changes = 5.0 - state.algorithm
    after = process.next(state, [kept])
    # It sends the larger entry of [changes[0], changes[1] + 3].
    np.testing.assert_allclose(
        after.state.algorithm, state.algorithm + [0, changes[1] + 3], rtol=1e-6
    )
    np.testing.assert_allclose(after.clients[0].residuals["train"], [changes[0], 0], rtol=1e-6)


def test_client_left_out_keeps_its_residuals():
    process = mean_process(top_k(share=0.5), error_feedback=True)
    cohort = clients(process, examples(5.0), examples(7.0))
    output = process.next(process.initialize(), cohort)
    none = examples(1.0)._replace(size=np.int32(0))
    for data, count in ((examples(np.nan), "num_nonfinite"), (none, "num_empty")):
        again = [
            cohort[0]._replace(state=output.clients[0], data=data),
            cohort[1]._replace(state=output.clients[1]),
        ]
        after = process.next(output.state, again)
        assert after.metrics["train"][count] == 1
        assert_equal(after.clients[0], output.clients[0])


@together(
    ("compressor", "error_feedback"),
    [(ALL, False), (half(), True), (quantized(bits=1), False), (quantized(bits=1), True)],
)
def test_nonfinite_uploads_are_found_before_compression(compressor, error_feedback):
    """Includes quantization, whose integers are always finite."""

    def client_work(server, state, data, context):
        upload = tf.where(tf.range(2) < 1, data.x[0], 0.0)
        return ClientOutput(state, upload)

    process = mean_process(compressor, error_feedback=error_feedback, client_work=client_work)
    cohort = clients(process, examples(np.nan), examples(np.inf), examples(3.0))
    output = process.next(process.initialize(), cohort)
    assert output.metrics["train"]["num_nonfinite"] == 2
    assert np.isfinite(output.state.algorithm).all()


@together(("size", "examples_", "left_out"), [(2e37, 1, 0), (3e37, 1, 1), (1e37, 9, 1)])
def test_client_whose_weighted_message_overflows_is_left_out(size, examples_, left_out):
    """Uses one bit, which lengthens a vector such that rotated entries overflow float32."""
    signs = np.random.default_rng(0).choice(np.float32([-1, 1]), size=1000)

    def client_work(server, state, data, context):
        return ClientOutput(state, signs * data.x[0], tf.cast(data.size, tf.float32))

    exchange = mean_exchange(averaged=lambda server: server, client_work=client_work)
    honest = algorithm_of(exchange, server_init=lambda seed: tf.zeros([1000]))
    process = EagerProcess(compressed(honest, quantized(bits=1)))
    cohort = clients(process, examples(*[size] * examples_), examples(1.0))
    output = process.next(process.initialize(), cohort)
    assert output.metrics["train"]["num_nonfinite"] == left_out
    assert output.metrics["train"]["server_kept"] == 0


def test_exchange_without_uploads_keeps_residuals():
    silent = Exchange(
        client_work=lambda server, state, data, context: ClientOutput(state), name="silent"
    )
    exchange = mean_exchange(averaged=lambda server: server)
    algorithm = compressed(algorithm_of(exchange, silent), top_k(share=0.5), error_feedback=True)
    process = EagerProcess(algorithm)
    output = process.next(process.initialize(), clients(process, examples(5.0)))
    assert list(output.clients[0].residuals) == ["train"]
    assert list(output.clients[0].residuals["train"]) == [0, 3]


# Two clients have optima at [10, 1] and [-10, 1]. The larger entries of their changes cancel each
# other, and without error feedback the smaller ones are never sent.


def distances_from_optimum(*, error_feedback, rate=0.02, rounds=200):
    """Returns the distance after each round, in which clients make a step on quadratic losses."""

    def client_work(server, state, data, context):
        return ClientOutput(state, rate * (data.x - server))

    exchange = mean_exchange(client_work=client_work, averaged=lambda server: server)
    algorithm = compressed(algorithm_of(exchange), top_k(share=0.5), error_feedback=error_feedback)
    process = compose(algorithm, examples_type((), np.float32, capacity=2))
    state, cohort = process.initialize(), clients(process, examples(10, 1), examples(-10, 1))
    distances = []
    for _ in range(rounds):
        output = process.next(state, cohort)
        cohort = [c._replace(state=s) for c, s in zip(cohort, output.clients, strict=True)]
        state = output.state
        distances.append(np.linalg.norm(state.algorithm - [0.0, 1.0]))
    return distances


@pytest.mark.thorough
def test_error_feedback_reaches_the_optimum_of_a_quadratic():
    lost = distances_from_optimum(error_feedback=False, rounds=20)
    fed_back = distances_from_optimum(error_feedback=True)
    assert min(lost) > 0.99  # The second coordinate does not move.
    assert max(fed_back[-20:]) < 0.25


@together(
    ("name", "reason"),
    [("fedpg", "the aggregator is StackFactory"), ("local", "clients upload nothing")],
)
def test_methods_without_averages_are_refused(name, reason):
    with pytest.raises(errors.AggregatorError, match=f"Uploads of {name}.*{reason}"):
        compressed(made(name), ALL)


@pytest.mark.thorough
def test_plain_mean_of_branches_can_be_compressed():
    algorithm = with_aggregator(made("pfedmb"), AGGREGATORS["mean"]())
    found = rounds_of(compressed(algorithm, ALL), 1)
    assert_close(found.state.algorithm, plain_rounds_of("pfedmb", 1).state.algorithm, 1e-5)


def test_only_plain_means_are_compressed():
    refused = {
        "StackRuleFactory": ("fedavg", AGGREGATORS["median"]()),
        "BranchMeanFactory": ("pfedmb", tff.aggregators.SumFactory()),
        "MeanFactory": ("fedavg", AGGREGATORS["secure"](zeroing=False, clipping=False)),
    }
    for factory, (name, aggregator) in refused.items():
        algorithm = with_aggregator(made(name), aggregator)
        with pytest.raises(errors.AggregatorError, match=f"by a plain mean, but .* {factory}"):
            compressed(algorithm, ALL)
    with pytest.raises(errors.AggregatorError, match="InnerProductFactory"):
        compressed(inner_product(made("fedavg"), client_ids=[0]), ALL)


@together("name", ["fedavg", "pfedmb", "feddyn"])
def test_compressed_uploads_have_no_other_aggregator_and_inner_products(name):
    algorithm = compressed(made(name), ALL)
    with pytest.raises(errors.AggregatorError, match="inner_product on .*compress their uploads"):
        inner_product(algorithm, client_ids=[0])
    reason = "each field of its uploads has" if name == "feddyn" else "its uploads are compressed"
    with pytest.raises(errors.AggregatorError, match=f"replaced: {reason}"):
        with_aggregator(algorithm, AGGREGATORS["median"]())


def test_other_objects_than_compressors_are_refused():
    with pytest.raises(TypeError, match=r'The compressor must be .*COMPRESSORS\["half"\]\(\) mak'):
        compressed(made("fedavg"), half)


def test_type_of_changes_must_be_known():
    with pytest.raises(errors.AggregatorError, match="Exchange.averaged is None. Set it"):
        compressed(algorithm_of(mean_exchange()), ALL)
    exchange = mean_exchange(averaged=lambda server: {"a": server, "b": server[0]})
    process = EagerProcess(compressed(algorithm_of(exchange), ALL))
    with pytest.raises(
        errors.AggregatorError, match=r"Uploads of .* has the type\n.*\nbut Exchange.av"
    ):
        process.next(process.initialize(), clients(process, examples(1.0)))


def test_snapshot_is_of_the_clients_own_state():
    algorithm = compressed(made("pfedmb"), half(), error_feedback=True)
    process = EagerProcess(algorithm)
    plain = EagerProcess(made("pfedmb"))
    states = [process.initialize_client(0)]
    assert isinstance(states[0], Compensated)
    assert_equal(process.client_snapshot(states), plain.client_snapshot([states[0].own]))


def compressed_pgfed(model, local):
    algorithm = make("pgfed", model, local, num_clients=8, clients_per_round=3)
    return compressed(algorithm, quantized(bits=4), error_feedback=True)


@pytest.mark.slow
@pytest.mark.parametrize("check", testing.CHECKS)
def test_contract(check):
    check(testing.Subject.of(compressed_pgfed, needs_uploads=True))

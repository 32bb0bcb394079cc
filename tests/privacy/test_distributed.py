"""Algorithms whose clients add the noise, and whose server sees a secure sum alone."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    SIZES,
    assert_close,
    assert_equal,
    local_sgd,
    make_clients,
    tiny_model,
    vector,
)
from tests.marks import slow
from tff_pfl.algorithms import make
from tff_pfl.privacy import with_distributed_privacy
from tff_pfl.templates import compose
from tff_pfl.templates.errors import AggregatorError
from tff_pfl.testing import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

MODEL, LOCAL = tiny_model(), local_sgd()
NORM = 3.0  # no upload is that long


def private(name, **changes):
    algorithm = make(name, MODEL, LOCAL, num_clients=5, clients_per_round=3)
    options = {"noise_multiplier": 0.0, "clip_norm": NORM, "bits": 24} | changes
    return with_distributed_privacy(algorithm, clients_per_round=3, **options)


@functools.cache
def composed(name, **changes):
    return compose(private(name, **changes), EXAMPLES_TYPE, seed=1)


NOISY = functools.partial(composed, "fedavg", noise_multiplier=1.0)


def in_the_clear(name):
    """The method itself, with clients that weigh the same."""
    options = {} if name == "feddyn" else {"weighting": "uniform"}
    algorithm = make(name, MODEL, LOCAL, num_clients=5, clients_per_round=3, **options)
    return EagerProcess(algorithm, seed=1)


def first_round(process, sizes=SIZES):
    return process.next(process.initialize(), make_clients(process, sizes))


@pytest.mark.parametrize("name", ["fedavg", slow("pfedmb"), slow("feddyn")])
def test_without_noise_it_is_the_method_but_for_rounding_and_nothing_is_seen(name):
    process = composed(name)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    found, expected = first_round(process), first_round(in_the_clear(name))
    found_state, expected_state = (vector(of.state.algorithm) for of in (found, expected))
    np.testing.assert_allclose(found_state, expected_state, atol=2e-5)
    assert_close(found.clients, expected.clients)
    assert set(found.metrics["train"]) <= {"server_kept", "aggregator"}


def test_methods_that_keep_a_part_at_their_clients_send_the_other():
    """Ditto and FedPer upload as FedAvg does; what is sent is integers below the modulus."""
    for name in ("ditto", "fedper"):
        send = private(name, noise_multiplier=2.0, bits=16).exchanges[0].send
        upload = MODEL.init(0)
        sent = vector(send(upload, np.array([1, 2], np.int32)))
        assert sent.dtype == np.int32 and sent.size == vector(upload).size
        assert sent.min() >= 0 and sent.max() < 2**16 and sent.max() > 2**15


def test_the_noise_of_a_round_has_the_deviation_that_is_asked_for():
    noisy, plain = (first_round(process) for process in (NOISY(), composed("fedavg")))
    noise = vector(noisy.state.algorithm) - vector(plain.state.algorithm)
    # The chi-squared distribution of a sum over so many numbers; rounding adds next to nothing.
    expected = NORM / 3
    assert noise.std() == pytest.approx(expected, rel=3 / np.sqrt(2 * noise.size))
    assert_equal(first_round(NOISY()).state, noisy.state)


def test_a_client_without_sound_results_adds_its_noise_all_the_same():
    process = NOISY()
    clients = [
        client._replace(data=client.data._replace(size=np.int32(99)))  # which are not there
        for client in make_clients(process, SIZES)
    ]
    found = process.next(process.initialize(), clients)
    noise = vector(found.state.algorithm) - vector(process.initialize().algorithm)
    assert noise.std() == pytest.approx(NORM / 3, rel=3 / np.sqrt(2 * noise.size))


@pytest.mark.parametrize(("name", "number"), [("fedavg", 4), ("fedavg", 2), slow("feddyn", 2)])
def test_of_too_few_or_too_many_clients_the_server_learns_nothing(name, number):
    """Of more than three, the sum may be beyond the modulus."""
    process = composed(name)
    state = first_round(process).state  # after which FedDyn moves by itself
    found = process.next(state, make_clients(process, [5] * number))
    assert_equal(found.state.algorithm, state.algorithm)
    metrics = found.metrics["train"]
    assert metrics["server_kept"] == 1
    aggregator = metrics["aggregator"]
    assert (aggregator["value"] if name == "feddyn" else aggregator)["withheld"] == 1


def test_too_few_bits_are_refused_when_the_size_of_uploads_is_known():
    with pytest.raises(AggregatorError, match="bits=8 are too few for .* Set more bits"):
        compose(private("fedavg", bits=8, noise_multiplier=20.0), EXAMPLES_TYPE)

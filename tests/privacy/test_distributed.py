"""Tests algorithms whose clients add the noise, and whose server sees only a secure sum."""

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
NORM = 3.0  # All uploads are shorter.


def private(name, **changes):
    algorithm = make(name, MODEL, LOCAL, num_clients=5, clients_per_round=3)
    options = {"noise_multiplier": 0.0, "clip_norm": NORM, "bits": 24} | changes
    return with_distributed_privacy(algorithm, clients_per_round=3, **options)


@functools.cache
def composed(name, **changes):
    return compose(private(name, **changes), EXAMPLES_TYPE, seed=1)


NOISY = functools.partial(composed, "fedavg", noise_multiplier=1.0)


def in_the_clear(name):
    """Returns the method without privacy, with uniform weights."""
    options = {} if name == "feddyn" else {"weighting": "uniform"}
    algorithm = make(name, MODEL, LOCAL, num_clients=5, clients_per_round=3, **options)
    return EagerProcess(algorithm, seed=1)


def first_round(process, sizes=SIZES):
    return process.next(process.initialize(), make_clients(process, sizes))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", slow("pfedmb"), slow("feddyn")])
def test_without_noise_rounds_equal_the_method_up_to_rounding(name):
    process = composed(name)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    found, expected = first_round(process), first_round(in_the_clear(name))
    found_state, expected_state = (vector(output.state.algorithm) for output in (found, expected))
    np.testing.assert_allclose(found_state, expected_state, atol=2e-5)
    assert_close(found.clients, expected.clients)
    assert set(found.metrics["train"]) <= {"server_kept", "aggregator"}


def test_methods_with_personal_parts_send_the_shared_part():
    """Checks that Ditto and FedPer send integers below the modulus."""
    for name in ("ditto", "fedper"):
        send = private(name, noise_multiplier=2.0, bits=16).exchanges[0].send
        upload = MODEL.init(0)
        sent = vector(send(upload, np.array([1, 2], np.int32)))
        assert sent.dtype == np.int32 and sent.size == vector(upload).size
        assert sent.min() >= 0 and sent.max() < 2**16 and sent.max() > 2**15


@pytest.mark.thorough
def test_noise_of_a_round_has_the_given_deviation():
    noisy, plain = (first_round(process) for process in (NOISY(), composed("fedavg")))
    noise = vector(noisy.state.algorithm) - vector(plain.state.algorithm)
    # The tolerance is of the chi-squared distribution; rounding adds almost nothing.
    expected = NORM / 3
    assert noise.std() == pytest.approx(expected, rel=3 / np.sqrt(2 * noise.size))
    assert_equal(first_round(NOISY()).state, noisy.state)


@pytest.mark.thorough
def test_client_without_sound_results_still_adds_its_noise():
    process = NOISY()
    clients = [
        client._replace(data=client.data._replace(size=np.int32(99)))  # An invalid size.
        for client in make_clients(process, SIZES)
    ]
    found = process.next(process.initialize(), clients)
    noise = vector(found.state.algorithm) - vector(process.initialize().algorithm)
    assert noise.std() == pytest.approx(NORM / 3, rel=3 / np.sqrt(2 * noise.size))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "number"), [("fedavg", 4), ("fedavg", 2), slow("feddyn", 2)])
def test_server_keeps_its_state_with_another_number_of_clients(name, number):
    """Includes more clients than expected, whose sum may exceed the modulus."""
    process = composed(name)
    state = first_round(process).state  # From here on, FedDyn moves even without uploads.
    found = process.next(state, make_clients(process, [5] * number))
    assert_equal(found.state.algorithm, state.algorithm)
    metrics = found.metrics["train"]
    assert metrics["server_kept"] == 1
    aggregator = metrics["aggregator"]
    assert (aggregator["value"] if name == "feddyn" else aggregator)["withheld"] == 1


def test_compose_refuses_too_few_bits():
    with pytest.raises(AggregatorError, match="bits=8"):
        compose(private("fedavg", bits=8, noise_multiplier=20.0), EXAMPLES_TYPE)

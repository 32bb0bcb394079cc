"""Tests clients whose results are rejected, and invalid cohorts."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.templates.mean_process import Visits, clients, compose, examples, mean_exchange
from tff_pfl.models import Mean
from tff_pfl.templates import ClientOutput, Exchange, Personalization

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

POISONS = ("upload", "state", "carry", "total", "count", "weight")


class Phases(NamedTuple):
    """Client state: the number of rounds of the client, and a complex number."""

    count: Any
    phase: Any


def poisoned_by_complex_nans(server, state, data, context):
    """Puts a NaN into `POISONS[i]` of a client with first input `i`, an imaginary one if it can."""
    poisoned = tf.equal(data.x[0], np.arange(len(POISONS), dtype=np.float32))
    real = dict(zip(POISONS, tf.unstack(tf.where(poisoned, np.nan, 1.0)), strict=True))
    imaginary = {name: tf.complex(1.0, value) for name, value in real.items()}
    return ClientOutput(
        state=Phases(state.count + 1, imaginary["state"]),
        upload={"z": tf.fill([2], imaginary["upload"])},
        weight=real["weight"],
        metrics={"value": Mean(real["total"], real["count"])},
        carry=tf.cast(imaginary["carry"], tf.complex128),
    )


@pytest.mark.thorough
def test_nan_is_found_in_all_results_of_a_client():
    process = compose(
        Exchange(
            client_work=poisoned_by_complex_nans,
            aggregator=tff.aggregators.SumFactory(),
            finalize=lambda server, total, round_num: (
                server,
                {"real": tf.math.real(total["z"]), "imaginary": tf.math.imag(total["z"])},
            ),
        ),
        client_init=lambda client_id, seed: Phases(tf.constant(0), tf.complex(0.0, 0.0)),
    )
    cohort = clients(process, *(examples(value) for value in range(-1, len(POISONS))))
    output = process.next(process.initialize(), cohort)
    metrics = output.metrics["train"]
    assert (metrics["num_clients"], metrics["num_nonfinite"]) == (1, len(POISONS))
    np.testing.assert_array_equal(metrics["server"]["real"], [1.0, 1.0])
    np.testing.assert_array_equal(metrics["server"]["imaginary"], [1.0, 1.0])
    assert [client.count for client in output.clients] == [1] + [0] * len(POISONS)
    assert [client.phase for client in output.clients] == [1 + 1j] + [0] * len(POISONS)


@pytest.fixture(scope="module")
def mean_process():
    """The mean process, in which a client's negative input is its weight."""
    work = mean_exchange().client_work

    def weighted(server, state, data, context):
        output = work(server, state, data, context)
        least = tf.reduce_min(data.x)
        weight = tf.where(least < 0.0, least, output.weight)
        return output._replace(state=Visits(output.state.count + data.size), weight=weight)

    return compose(
        mean_exchange(client_work=weighted),
        personalize=Personalization(
            client_work=lambda message, state, data, context: tf.cast(data.size, tf.float32)
        ),
        global_weights=None,
    )


def test_negative_weight_is_rejected(mean_process):
    """Without the rejection, the server's mean would be (1 * 6 - 2 * -2) / (1 - 2) = -10."""
    cohort = clients(mean_process, examples(6.0), examples(-2.0))
    output = mean_process.next(mean_process.initialize(), cohort)
    np.testing.assert_allclose(output.state.algorithm, [6.0, 6.0], rtol=1e-6)
    assert [client.count for client in output.clients] == [2, 0]
    metrics = output.metrics["train"]
    assert (metrics["num_clients"], metrics["num_examples"]) == (1, 1)
    assert (metrics["num_nonfinite"], metrics["num_empty"]) == (1, 0)


@pytest.mark.usefixtures("each_runtime")
def test_size_that_does_not_fit_the_rows_is_rejected(mean_process):
    two = examples(4.0, 8.0)
    data = [
        two,
        two._replace(size=np.int32(3)),
        two._replace(size=np.int32(-1)),
        two._replace(x=two.x[:1]),
        two._replace(y=two.y[:1]),
        examples(),
    ]
    cohort, state = clients(mean_process, *data), mean_process.initialize()
    output = mean_process.next(state, cohort)
    sizes = mean_process.personalize(state, cohort)
    np.testing.assert_allclose(output.state.algorithm, [6.0, 6.0], rtol=1e-6)
    assert [client.count for client in output.clients] == [3, 0, 0, 0, 0, 0]
    metrics = output.metrics["train"]
    assert (metrics["num_clients"], metrics["num_examples"]) == (1, 2)
    assert (metrics["num_nonfinite"], metrics["num_empty"]) == (4, 1)
    assert sizes == [2, 0, 0, 0, 0, 0], "client work reads padding"


@pytest.mark.thorough
@pytest.mark.usefixtures("each_runtime")
def test_client_twice_in_a_cohort_raises(mean_process):
    state = mean_process.initialize()
    twice = clients(mean_process, *[examples(1.0)] * 4, ids=[3, 0, 7, 3])
    with pytest.raises(Exception, match=r"must not be in a cohort twice.*\[3 0 7 3\]"):
        mean_process.next(state, twice)
    assert mean_process.next(state, twice[1:]).metrics["train"]["num_clients"] == 3

"""Tests algorithms whose server sees only a noisy mean."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import tree_analysis

from tests.federation import (
    EXAMPLES_TYPE,
    SIZES,
    assert_close,
    local_sgd,
    make_clients,
    tiny_model,
    vector,
)
from tests.marks import slow, together
from tests.templates import mean_process
from tests.templates.mean_process import algorithm, mean_exchange
from tff_pfl.algorithms import make
from tff_pfl.attacks import ATTACKS
from tff_pfl.compression import COMPRESSORS, compressed
from tff_pfl.privacy import with_distributed_privacy, with_privacy
from tff_pfl.templates import compose, with_aggregator
from tff_pfl.templates.errors import AggregatorError
from tff_pfl.testing import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
MODEL, LOCAL = tiny_model(), local_sgd()
FAR = 1e6  # All uploads are shorter.


@functools.cache
def composed(name, **privacy):
    algorithm = make(name, MODEL, LOCAL, num_clients=5, clients_per_round=3)
    options = {"noise_multiplier": 0.0, "clipping": "fixed", "clip_norm": FAR, **privacy}
    private = with_privacy(algorithm, clients_per_round=3, seed=1, **options)
    return compose(private, EXAMPLES_TYPE, seed=1)


def first_round(process, sizes=SIZES):
    return process.next(process.initialize(), make_clients(process, sizes))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", *map(slow, ("pfedmb", "ditto", "scaffold"))])
def test_without_noise_and_clipping_rounds_equal_the_method(name):
    options = {} if name == "scaffold" else {"weighting": "uniform"}
    algorithm = make(name, MODEL, LOCAL, num_clients=5, clients_per_round=3, **options)
    expected = first_round(EagerProcess(algorithm, seed=1))
    found = first_round(composed(name, noise_multiplier=0.0))
    assert_close(found.state.algorithm, expected.state.algorithm)
    assert_close(found.clients, expected.clients)


@pytest.mark.thorough
def test_server_aggregates_only_uploads():
    process = composed("fedavg", noise_multiplier=0.0)
    (call,) = tree_analysis.find_unsecure_aggregation_in_tree(process.next.to_building_block())
    assert call.function.uri == "federated_sum"
    sums = call.argument.type_signature.member
    assert str(sums) == str(MODEL.weights_type)
    metrics = first_round(process).metrics["train"]
    assert set(metrics) == {"server_kept"}


@pytest.mark.thorough
def test_round_without_clients_is_as_noisy_as_others():
    """Expects the standard deviation 0.2 * 3 / 3, as the mean is over three expected clients."""
    process = composed("fedavg", noise_multiplier=0.2, clip_norm=3.0)
    state = process.initialize()
    found = process.next(state, []).state.algorithm
    noise = vector(found) - vector(state.algorithm)
    assert np.all(noise)
    assert np.std(noise) == pytest.approx(0.2, rel=3 / np.sqrt(2 * len(noise)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", slow("feddyn")])
def test_secure_sums_aggregate_nothing_in_the_clear(name):
    process = composed(name, noise_multiplier=0.1, secure_sums=True)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


def test_client_without_sound_results_is_like_an_absent_client():
    process = composed("fedavg", noise_multiplier=0.0)
    state = process.initialize()
    clients = make_clients(process, SIZES)
    clients[1] = clients[1]._replace(data=clients[1].data._replace(size=np.int32(99)))
    found = process.next(state, clients)
    without = process.next(state, [clients[0], clients[2]])
    assert_close(found.state.algorithm, without.state.algorithm)
    assert found.metrics["train"] == without.metrics["train"]


@together(
    ("name", "message"),
    [
        ("pgfed", "each field of its uploads has its own aggregator"),
        ("fedpg", "every upload by itself"),
        ("local", "clients upload nothing"),
    ],
)
def test_methods_that_need_more_than_a_mean_are_refused(name, message):
    with pytest.raises(AggregatorError, match=f"of {name}.* cannot be replaced: .*{message}"):
        composed(name, noise_multiplier=0.1)


def test_rejected_server_state_still_advances_the_noise():
    def finalize(server, change, round_num):
        return server + tf.where(tf.equal(round_num, 1), np.inf, 0.0), {"change": change}

    honest = algorithm(mean_exchange(finalize=finalize))
    options = {"noise_multiplier": 1.0, "clients_per_round": 20, "clipping": "fixed", "seed": 1}
    process = compose(with_privacy(honest, **options), mean_process.EXAMPLES_TYPE)
    state, noise = process.initialize(), []
    for kept in (0, 1, 0):
        output = process.next(state, [])
        state = output.state
        assert output.metrics["train"]["server_kept"] == kept
        noise.append(tuple(output.metrics["train"]["server"]["change"]))
    assert len(set(noise)) == 3


@pytest.mark.parametrize("make_private", [with_privacy, with_distributed_privacy])
def test_privacy_refuses_other_aggregators_compression_and_attacks(make_private):
    exchanges = [mean_exchange(), dataclasses.replace(mean_exchange(), name="second")]
    message = "upload in 2 exchanges of a round, train, second, but privacy needs one noisy mean"
    # This error comes first, although three clients are too few for this noise.
    with pytest.raises(AggregatorError, match=message):
        make_private(algorithm(*exchanges), noise_multiplier=1.0, clients_per_round=3)
    options = {"noise_multiplier": 0.1, "clients_per_round": 20}
    for name in ("feddyn", "pfedmb", "fedavg"):
        private = make_private(make(name, MODEL, LOCAL, num_clients=5), **options)
        with pytest.raises(AggregatorError, match=f"of {name}.* cannot be replaced"):
            with_aggregator(private, tff.aggregators.MeanFactory())
        with pytest.raises(AggregatorError, match=f"of {name}.* cannot be replaced"):
            make_private(private, **options)
        with pytest.raises(AggregatorError, match=f"of {name}.* cannot be compressed"):
            compressed(private, COMPRESSORS["half"]())
    # Replacing one honest client would also change the uploads of attackers.
    with pytest.raises(AggregatorError, match="inner_product on fedavg .* on only one client"):
        ATTACKS["inner_product"](private, client_ids=[1])


ADDED = dataclasses.replace(mean_exchange(), name="second")


def unsent(exchange):
    return dataclasses.replace(exchange, send=lambda upload, seed: upload)


def in_the_clear(exchange):
    return dataclasses.replace(exchange, aggregator=tff.aggregators.MeanFactory())


@together("make_private", [with_privacy, with_distributed_privacy])
@together(
    ("change", "noise"),
    [
        (lambda private: dataclasses.replace(private, report="clear"), None),
        (lambda private: private.with_exchanges(in_the_clear), None),
        (lambda private: private.with_exchanges(unsent), None),
        (lambda private: dataclasses.replace(private, exchanges=[*private.exchanges, ADDED]), None),
        (lambda private: ATTACKS["scaled_uploads"](private, client_ids=[0]), 0.1),
        (lambda private: ATTACKS["label_flip"](private, client_ids=[0], num_classes=3), 0.1),
        (lambda private: dataclasses.replace(private, global_weights=None, name="own"), 0.1),
    ],
)
def test_changes_reset_the_declared_noise(make_private, change, noise):
    private = make_private(make("fedavg", MODEL, LOCAL), noise_multiplier=0.1, clients_per_round=20)
    changed = change(private)
    assert changed.noise_multiplier == noise
    assert dataclasses.replace(changed, name="again").noise_multiplier == noise
    # An algorithm that adds noise in another way can declare it.
    assert changed.with_declared_noise(0.2).noise_multiplier == 0.2


def test_unknown_clipping_is_refused():
    with pytest.raises(ValueError, match="clipping 'fix'"):
        composed("fedavg", clipping="fix")

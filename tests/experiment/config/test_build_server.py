"""What a config says of the server is what the algorithm of a run has."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.experiment.config.small import algorithm_of
from tff_pfl.experiment import ConfigError
from tff_pfl.templates import AGGREGATORS


def test_the_servers_optimizer_is_that_of_the_config():
    assert algorithm_of("fedavg").server_init(0).optimizer == ()
    momentum = {"optimizer": "sgd", "learning_rate": 0.5, "momentum": 0.9}
    state = algorithm_of("ditto", server=momentum).server_init(0).optimizer
    assert (state["learning_rate"], state["momentum"]) == (0.5, 0.9)
    adam = {"optimizer": "adam", "options": {"beta_1": 0.7}}
    state = algorithm_of("fedper", server=adam).server_init(0).optimizer
    assert (state["learning_rate"], state["beta_1"], state["beta_2"]) == (1.0, 0.7, 0.999)


@pytest.mark.parametrize(
    ("algorithm", "server", "message"),
    [
        (
            "fedfomo",
            {"optimizer": "sgd"},
            "config.server.optimizer='sgd', but 'fedfomo' takes none",
        ),
        ("fedavg", {"optimizer": "adam", "momentum": 0.5}, "config.server.momentum=0.5, but"),
    ],
)
def test_servers_that_are_refused(algorithm, server, message):
    with pytest.raises(ConfigError, match=message):
        algorithm_of(algorithm, server=server)


@pytest.mark.parametrize("name", ["mean", "robust", "ddp_secure"])
def test_the_aggregator_is_that_of_the_config(name, monkeypatch):
    factory, options = tff.aggregators.MeanFactory(), []

    @functools.wraps(AGGREGATORS[name])
    def make(**chosen):
        options.append(chosen)
        return factory

    monkeypatch.setitem(AGGREGATORS._registered, name, make)
    chosen = {"name": name, "options": {"zeroing": False} if name == "robust" else {}}
    (exchange,) = algorithm_of("fedavg", aggregator=chosen).exchanges
    assert exchange.aggregator is factory
    expected = {"clients_per_round": 3} if name == "ddp_secure" else {}
    assert options == [expected | chosen["options"]]


@pytest.mark.parametrize("algorithm", ["fedpg", "local"])
def test_aggregators_that_are_refused(algorithm):
    with pytest.raises(ConfigError, match="config.aggregator: The aggregator of .*cannot be repl"):
        algorithm_of(algorithm, aggregator={"name": "mean"})


@pytest.mark.parametrize(
    ("participation", "largest"),
    [({"sampling": "poisson"}, 6), ({"over_selection": 1.5}, 3)],
)
def test_the_largest_cohort_is_all_clients_where_each_is_drawn_by_itself(participation, largest):
    (exchange,) = (algorithm := algorithm_of("pgfed", participation=participation)).exchanges
    server = algorithm.server_init(0)
    assert exchange.distribute(server).intercepts.shape == [largest]
    assert server.alpha.values[-1] == np.float32(1 / 3)

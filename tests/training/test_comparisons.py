"""The configs of the papers' comparisons say what the papers do."""

import pytest

from configs import fedpg, pgfed
from tff_pfl import algorithms
from tff_pfl.names import UnknownNameError
from tff_pfl.training import check_config

METHODS = {
    "fedpg_gamma0.3": {"gamma_mode": "constant", "gamma": 0.3},
    "fedpg_gamma0.6": {"gamma_mode": "constant", "gamma": 0.6},
    "fedpg_gamma1.0": {"gamma_mode": "constant", "gamma": 1.0},
    "fedpg_m1": {"direction": "mean"},
    "fedpg_m2": {"fairness": False},
    "fedpg_m3": {"personalize": False},
    "fedpg_m4": {"absent_memory": False},
}


@pytest.mark.parametrize("partition", ["dir", "pat"])
@pytest.mark.parametrize("dataset", ["fmnist", "cifar10"])
@pytest.mark.parametrize("method", [*METHODS, *algorithms.ALGORITHMS])
def test_every_comparison_of_fedpg(partition, dataset, method):
    assert method in fedpg.__doc__ or method in algorithms.ALGORITHMS
    config = fedpg.get_config(f"{partition},{dataset},{method}")
    check_config(config)
    algorithm = config.algorithm.to_dict()
    assert algorithm.pop("name") == ("fedpg" if method in METHODS else method)
    if method in METHODS or method == "fedpg":
        assert algorithm == algorithms.hyperparameters("fedpg") | METHODS.get(method, {})
    assert config.data.name == {"fmnist": "fashion_mnist", "cifar10": "cifar10"}[dataset]
    assert config.model.name == {"fmnist": "mlp", "cifar10": "cnn_fedpg"}[dataset]
    partitioner = {"dir": "dirichlet", "pat": "classes_per_client"}[partition]
    assert config.data.partitioner == partitioner
    assert (config.rounds, config.data.num_clients, config.clients_per_round) == (2000, 100, 10)
    assert sum(config.data.fractions) == pytest.approx(1.0)
    assert all(0 <= value <= 1 for value in config.paper.values())


def test_the_percentage_of_clients_that_take_part():
    for percent in (1, 50, 100):
        config = fedpg.get_config(f"pat,cifar10,s_fedpg,{percent}")
        check_config(config)
        assert config.clients_per_round == percent


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("dirr,fmnist,fedpg", "Unknown partition 'dirr'. Did you mean 'dir'"),
        ("pat,fminst,fedpg", "Unknown data set 'fminst'. Did you mean 'fmnist'"),
        ("pat,cifar,fedpg", "Unknown data set 'cifar'. Did you mean 'cifar10'"),
        ("dir,fmnist,fedp", "Unknown method 'fedp'. Did you mean 'fedpg'"),
        ("dir,fmnist,s_fedgp", "Unknown method 's_fedgp'. Did you mean 's_fedpg'"),
    ],
)
def test_comparisons_that_there_are_not(choice, message):
    with pytest.raises(UnknownNameError, match=message):
        fedpg.get_config(choice)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize(("clients", "cohort"), [("25", 6), ("50", 12), ("100", 25)])
@pytest.mark.parametrize("method", ["pgfed", "local", "ditto"])
def test_every_comparison_of_pgfed(dataset, clients, cohort, method):
    config = pgfed.get_config(f"{dataset},{clients},{method}")
    check_config(config)
    assert config.algorithm.to_dict() == {"name": method} | algorithms.hyperparameters(method)
    assert (config.data.name, config.data.num_clients) == (dataset, int(clients))
    assert (config.rounds, config.clients_per_round) == (300, cohort)
    assert (config.local.batch_size, config.local.drop_remainder) == (10, True)
    assert ("personalized_accuracy_percent" in config.paper) == (method != "ditto")


def test_results_of_pgfed_stand_beside_their_protocol():
    def accuracy(choice):
        return pgfed.get_config(choice).paper.personalized_accuracy_percent

    assert accuracy("cifar10,25,pgfed") == 81.02
    assert accuracy("cifar10,100,fedavg") == 63.19
    assert accuracy("cifar100,25,pgfedmo") == 43.44


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("cifar,25,pgfed", "Unknown data set 'cifar'. Did you mean 'cifar10'"),
        ("cifar10,20,pgfed", "Unknown number of clients '20'.*Valid: '25', '50', '100'"),
        ("cifar10,25,pgfd", "Unknown method 'pgfd'. Did you mean 'pgfed'"),
        ("cifar10,25", "DATASET,CLIENTS,METHOD; got 'cifar10,25'"),
    ],
)
def test_comparisons_of_pgfed_that_there_are_not(choice, message):
    with pytest.raises(ValueError, match=message):
        pgfed.get_config(choice)

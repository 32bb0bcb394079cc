"""Tests that the configs of comparisons match the papers."""

import pytest

from configs import fedpg, pfedmb, pgfed, plgu
from tests.marks import together
from tff_pfl import algorithms
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.config import check_config
from tff_pfl.config.options import value_of

FEDPG = {"rounds": 2000, "data.num_clients": 100, "clients_per_round": 10}
PGFED = {"rounds": 300, "local.batch_size": 10, "local.drop_remainder": True}
PLGU = {"local.batch_size": 50, "local.epochs": 5, "data.classes_per_client.assignment": "random"}


def constant(gamma):
    return {"algorithm.gamma_mode": "constant", "algorithm.gamma": gamma}


def network(data, model, partitioner="classes_per_client"):
    return {"data.name": data, "model.name": model, "data.partitioner": partitioner}


def classes(data, clients, number, model):
    keys = ("data.name", "data.num_clients", "data.classes_per_client.classes", "model.name")
    return dict(zip(keys, (data, clients, number, model), strict=True))


@pytest.mark.parametrize(
    ("comparisons", "choice", "expected"),
    [
        (fedpg, "dir,fmnist,fedpg", FEDPG | network("fashion_mnist", "mlp", "dirichlet")),
        (fedpg, "pat,cifar10,fedavg", FEDPG | network("cifar10", "cnn_fedpg")),
        (fedpg, "pat,cifar100,fedpg", FEDPG | network("cifar100", "nf_resnet18")),
        (fedpg, "dir,fmnist,fedpg_gamma0.3", constant(0.3)),
        (fedpg, "dir,fmnist,fedpg_gamma0.6", constant(0.6)),
        (fedpg, "dir,fmnist,fedpg_gamma1.0", constant(1.0)),
        (fedpg, "dir,fmnist,fedpg_m1", {"algorithm.direction": "mean"}),
        (fedpg, "dir,fmnist,fedpg_m2", {"algorithm.fairness": False}),
        (fedpg, "dir,fmnist,fedpg_m3", {"algorithm.personalize": False}),
        (fedpg, "dir,fmnist,fedpg_m4", {"algorithm.absent_memory": False}),
        (fedpg, "pat_unequal,fmnist,fedpg_m2", {"data.classes_per_client.amounts": "unequal"}),
        (fedpg, "dir,fmnist,ditto", {"local.learning_rate": 0.1}),
        # The authors' server has the decaying rate of the clients.
        (fedpg, "dir,fmnist,fedmgda_plus", {"algorithm.server_lr": None}),
        (fedpg, "dir,fmnist,fedamp", {"algorithm.lambda_": 5e-7, "algorithm.alpha": 5e-3}),
        (fedpg, "dir,fmnist,fedamp_tuned", {"algorithm.distance_scale": "median"}),
        (fedpg, "pat,cifar10,s_fedpg,50", {"clients_per_round": 50}),
        (fedpg, "dir,fmnist,fedfomo", {"algorithm.num_models": 10, "clients_per_round": 10}),
        (fedpg, "dir,fmnist,fedfomo,50", {"algorithm.num_models": 50, "clients_per_round": 50}),
        (pgfed, "cifar10,25,pgfed", PGFED | {"clients_per_round": 6, "local.momentum": 0.9}),
        (pgfed, "cifar100,50,ditto", PGFED | {"clients_per_round": 12, "data.num_clients": 50}),
        (pgfed, "cifar10,100,local", PGFED | {"clients_per_round": 25, "data.num_clients": 100}),
        (pgfed, "cifar10,25,fedrod", {"local.momentum": 0.0, "local.batch_size": 10}),
        (pgfed, "cifar10,25,per_fedavg", {"local.momentum": 0.0, "local.batch_size": 20}),
        (plgu, "cifar10,10,fedavg", PLGU | classes("cifar10", 100, 3, "resnet18")),
        (plgu, "cifar10,100,fedavg", classes("cifar10", 100, 3, "resnet18")),
        (plgu, "cifar100,10,fedavg", classes("cifar100", 100, 10, "wide_resnet")),
        (plgu, "cifar100,100,fedavg", classes("cifar100", 100, 10, "wide_resnet")),
        (plgu, "tiny_imagenet,20,fedavg", classes("tiny_imagenet", 20, 30, "resnet50")),
        (plgu, "cifar10,10,plgu_lf", {"algorithm.num_personal_layers": 5}),
        (plgu, "cifar10,10,pfedhn", {"algorithm.hidden_layers": 3}),
        (plgu, "cifar10,10,plgu_ghn", {"algorithm.hidden_layers": 3}),
        (plgu, "cifar10,10,plgu_grep,epochs=10", {"local.epochs": 10, "algorithm.rho": 0.05}),
        (plgu, "cifar10,10,plgu_grep,rho=0.1", {"local.epochs": 5, "algorithm.rho": 0.1}),
        (
            pfedmb,
            "two_classes,15,pfedmb",
            {"evaluation.fine_tune_epochs": 5, "evaluation.fine_tune_learning_rate": 0.03},
        ),
    ],
)
def test_configs_set_the_values_of_the_papers(comparisons, choice, expected):
    config = comparisons.get_config(choice)
    check_config(config)
    assert {key: value_of(config, key) for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", algorithms.ALGORITHMS)
@pytest.mark.parametrize("dataset", ["fmnist", "cifar10", "cifar100"])
def test_each_method_has_a_config_of_fedpg(dataset, method):
    config = fedpg.get_config(f"dir,{dataset},{method}")
    check_config(config)
    assert config.algorithm.name == method
    assert sum(config.data.fractions) == pytest.approx(1.0)


def test_pfedme_does_not_diverge_at_the_rates_of_fedpg():
    config = fedpg.get_config("dir,fmnist,pfedme")
    assert config.local.learning_rate * config.algorithm.lambda_ < 1


def test_recipe_of_moon_changes_only_local_training_and_fine_tuning():
    plain, recipe = (pfedmb.get_config(f"dirichlet,15,ifca{part}") for part in ("", ",moon"))
    check_config(recipe)
    assert (recipe.local.momentum, recipe.local.weight_decay) == (0.9, 1e-5)
    assert recipe.local.augmentation.name == "crop_and_flip"
    recipe.local = plain.local
    recipe.evaluation.fine_tune_learning_rate = plain.evaluation.fine_tune_learning_rate
    assert recipe == plain


@together(
    ("comparisons", "choice", "message"),
    [
        (pgfed, "cifar10,20,pgfed", "Unknown CLIENTS '20'.*Valid: '25', '50', '100'"),
        (plgu, "cifar10,10", r"DATASET,COHORT,METHOD\[,VARIED\], found 'cifar10,10'"),
        (plgu, "cifar10,100,plgu_lf,rho=0.1", "of cifar10 with 10 clients a round"),
        (plgu, "cifar10,10,fedavg,rho=0.1", "'fedavg' has no radius rho"),
        (pfedmb, "", "(?s)After the colon comes .*, found ''.*  METHOD: .*fedavg, "),
    ],
)
def test_unknown_choices_are_refused(comparisons, choice, message):
    with pytest.raises(UnknownNameError if choice == "" else ValueError, match=message):
        comparisons.get_config(choice)

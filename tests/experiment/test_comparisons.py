"""Tests that the configs of comparisons match the papers."""

import itertools

import pytest

from configs import fedpg, pfedmb, pgfed, plgu
from tests.marks import slow, together
from tff_pfl import algorithms
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.config import check_config
from tff_pfl.config.options import value_of

METHODS = {
    "fedpg_gamma0.3": {"gamma_mode": "constant", "gamma": 0.3},
    "fedpg_gamma0.6": {"gamma_mode": "constant", "gamma": 0.6},
    "fedpg_gamma1.0": {"gamma_mode": "constant", "gamma": 1.0},
    "fedpg_m1": {"direction": "mean"},
    "fedpg_m2": {"fairness": False},
    "fedpg_m3": {"personalize": False},
    "fedpg_m4": {"absent_memory": False},
}
COHORTS = {"25": 6, "50": 12, "100": 25}
EVERY = (*METHODS, *algorithms.ALGORITHMS)
PLGU = {
    "cifar10,10": (100, 3, "resnet18"),
    "cifar10,100": (100, 3, "resnet18"),
    "cifar100,10": (100, 10, "wide_resnet"),
    "cifar100,100": (100, 10, "wide_resnet"),
    "tiny_imagenet,20": (20, 30, "resnet50"),
}


def some(choices, *fast):
    """Parametrizes a test by `choices`, which are slow except `fast`."""
    return pytest.mark.parametrize("choice", [c if c in fast else slow(c) for c in choices])


@some(
    map(",".join, itertools.product(["dir", "pat"], ["fmnist", "cifar10", "cifar100"], EVERY)),
    *("dir,fmnist,fedpg_m1", "pat,cifar100,fedavg"),
)
def test_configs_of_fedpg_match_the_paper(choice):
    partition, dataset, method = choice.split(",")
    assert method in fedpg.__doc__ or method in algorithms.ALGORITHMS
    config = fedpg.get_config(f"{partition},{dataset},{method}")
    check_config(config)
    algorithm = config.algorithm.to_dict()
    assert algorithm.pop("name") == ("fedpg" if method in METHODS else method)
    if method in METHODS or method == "fedpg":
        assert algorithm == algorithms.hyperparameters("fedpg") | METHODS.get(method, {})
    assert config.data.name == {"fmnist": "fashion_mnist"}.get(dataset, dataset)
    models = {"fmnist": "mlp", "cifar10": "cnn_fedpg", "cifar100": "nf_resnet18"}
    assert config.model.name == models[dataset]
    partitioner = {"dir": "dirichlet", "pat": "classes_per_client"}[partition]
    assert config.data.partitioner == partitioner
    assert (config.rounds, config.data.num_clients, config.clients_per_round) == (2000, 100, 10)
    assert sum(config.data.fractions) == pytest.approx(1.0)


@some(
    map(",".join, itertools.product(["cifar10", "cifar100"], COHORTS, ["pgfed", "local", "ditto"])),
    *("cifar10,25,pgfed", "cifar100,50,ditto"),
)
def test_configs_of_pgfed_match_the_paper(choice):
    dataset, clients, method = choice.split(",")
    config = pgfed.get_config(choice)
    check_config(config)
    assert config.algorithm.to_dict() == {"name": method} | algorithms.hyperparameters(method)
    assert (config.data.name, config.data.num_clients) == (dataset, int(clients))
    assert (config.rounds, config.clients_per_round) == (300, COHORTS[clients])
    assert (config.local.batch_size, config.local.drop_remainder) == (10, True)


@some(
    map(",".join, itertools.product(PLGU, ["fedavg", "plgu_lf", "plgu_ghn", "pfedhn"])),
    "cifar10,10,plgu_lf",
)
def test_configs_of_plgu_match_the_paper(choice):
    dataset, cohort, method = choice.split(",")
    clients, labels, model = PLGU[f"{dataset},{cohort}"]
    config = plgu.get_config(choice)
    check_config(config)
    expected = {"plgu_lf": {"num_personal_layers": 5}, "pfedhn": {"hidden_layers": 3}}
    expected = algorithms.hyperparameters(method) | expected.get(method, {})
    assert config.algorithm.to_dict() == {"name": method} | expected
    assert (config.data.name, config.clients_per_round) == (dataset, int(cohort))
    assert (config.data.num_clients, config.model.name) == (clients, model)
    options = {"classes": labels, "assignment": "random", "amounts": "equal"}
    assert config.data.classes_per_client.to_dict() == options
    assert (config.local.batch_size, config.local.epochs) == (50, 5)
    assert sum(config.data.fractions) == pytest.approx(1.0)


TUNED = {"algorithm.name": "fedamp", "algorithm.distance_scale": "median"}


@together(
    ("comparisons", "choice", "expected"),
    [
        (fedpg, "pat_unequal,fmnist,fedpg_m2", {"data.classes_per_client.amounts": "unequal"}),
        (fedpg, "dir,fmnist,ditto", {"local.learning_rate": 0.1}),
        # The authors' server has the decaying rate of the clients.
        (fedpg, "dir,fmnist,fedmgda_plus", {"algorithm.server_lr": None}),
        (fedpg, "dir,fmnist,fedamp", {"algorithm.lambda_": 5e-7, "algorithm.alpha": 5e-3}),
        (fedpg, "dir,fmnist,fedamp_tuned", TUNED),
        (fedpg, "pat,cifar10,s_fedpg,50", {"clients_per_round": 50}),
        (fedpg, "dir,fmnist,fedfomo", {"algorithm.num_models": 10, "clients_per_round": 10}),
        (fedpg, "dir,fmnist,fedfomo,50", {"algorithm.num_models": 50, "clients_per_round": 50}),
        (pgfed, "cifar10,25,pgfed", {"local.momentum": 0.9, "local.batch_size": 10}),
        (pgfed, "cifar10,25,fedrod", {"local.momentum": 0.0, "local.batch_size": 10}),
        (pgfed, "cifar10,25,per_fedavg", {"local.momentum": 0.0, "local.batch_size": 20}),
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
        (fedpg, "dir,fmnist,s_fedgp", "Unknown METHOD 's_fedgp'. Did you mean 's_fedpg'"),
        (pgfed, "cifar10,20,pgfed", "Unknown CLIENTS '20'.*Valid: '25', '50', '100'"),
        (plgu, "cifar10,10", r"DATASET,COHORT,METHOD\[,VARIED\], found 'cifar10,10'"),
        (plgu, "cifar10,100,plgu_lf,rho=0.1", "of cifar10 with 10 clients a round"),
        (plgu, "cifar10,10,fedavg,rho=0.1", "'fedavg' has no radius rho"),
        (pfedmb, "dirichlet,15,ifca,mon", "Unknown RECIPE 'mon'. Did you mean 'moon'"),
        (pfedmb, "", "(?s)After the colon comes .*, found ''.*  METHOD: .*fedavg, "),
    ],
)
def test_unknown_choices_are_refused(comparisons, choice, message):
    with pytest.raises(UnknownNameError if choice == "" else ValueError, match=message):
        comparisons.get_config(choice)

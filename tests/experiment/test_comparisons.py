"""The configs of the papers' comparisons say what the papers do."""

import itertools

import pytest

from configs import fedpg, pfedmb, pgfed, plgu
from tests.marks import slow
from tff_pfl import algorithms
from tff_pfl.experiment import check_config
from tff_pfl.names import UnknownNameError

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


def some(choices, *fast):
    """All choices, of which others than some are slow."""
    return pytest.mark.parametrize("choice", [c if c in fast else slow(c) for c in choices])


@some(
    map(",".join, itertools.product(["dir", "pat"], ["fmnist", "cifar10", "cifar100"], EVERY)),
    *("dir,fmnist,fedpg_m1", "pat,cifar100,fedavg"),
)
def test_every_comparison_of_fedpg(choice):
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
    assert all(0 <= value <= 1 for value in config.paper.values())


def test_unequal_amounts():
    unequal, equal = (fedpg.get_config(f"{pat},fmnist,fedpg_m2") for pat in ("pat_unequal", "pat"))
    check_config(unequal)
    assert unequal.data.classes_per_client.amounts == "unequal"
    unequal.data.classes_per_client.amounts = "equal"
    assert unequal.to_dict() == equal.to_dict()


def test_rates_of_fedpgs_comparison():
    pfedme = fedpg.get_config("dir,fmnist,pfedme")
    assert pfedme.local.learning_rate * pfedme.algorithm.lambda_ < 1
    assert fedpg.get_config("dir,fmnist,ditto").local.learning_rate == 0.1
    # The authors' server has the rate of the clients, which decays.
    assert fedpg.get_config("dir,fmnist,fedmgda_plus").algorithm.server_lr is None


def test_fedamp_as_it_was_compared_and_tuned():
    compared, tuned = (
        fedpg.get_config(f"dir,fmnist,{name}") for name in ("fedamp", "fedamp_tuned")
    )
    check_config(tuned)
    assert (compared.algorithm.lambda_, compared.algorithm.alpha) == (5e-7, 5e-3)
    assert (tuned.algorithm.name, tuned.algorithm.distance_scale) == ("fedamp", "median")
    assert tuned.algorithm.lambda_ / tuned.algorithm.alpha == pytest.approx(0.1)
    assert not tuned.paper


def test_the_percentage_of_clients_that_take_part():
    for percent in (1, 50, 100):
        config = fedpg.get_config(f"pat,cifar10,s_fedpg,{percent}")
        check_config(config)
        assert config.clients_per_round == percent


@pytest.mark.parametrize(
    ("comparisons", "choice", "message"),
    [
        (fedpg, "dir,fmnist,s_fedgp", "Unknown METHOD 's_fedgp'. Did you mean 's_fedpg'"),
        (pgfed, "cifar10,20,pgfed", "Unknown CLIENTS '20'.*Valid: '25', '50', '100'"),
        (plgu, "cifar10,10", r"DATASET,COHORT,METHOD\[,VARIED\], found 'cifar10,10'"),
        (plgu, "cifar10,100,plgu_lf,rho=0.1", "of cifar10 with 10 clients a round"),
        (plgu, "cifar10,10,fedavg,rho=0.1", "'fedavg' has no radius rho"),
        (pfedmb, "dirichlet,15,ifca,mon", "Unknown RECIPE 'mon'. Did you mean 'moon'"),
    ],
    ids=str,
)
def test_comparisons_that_there_are_not(comparisons, choice, message):
    with pytest.raises(ValueError, match=message):
        comparisons.get_config(choice)


@some(
    map(",".join, itertools.product(["cifar10", "cifar100"], COHORTS, ["pgfed", "local", "ditto"])),
    *("cifar10,25,pgfed", "cifar100,50,ditto"),
)
def test_every_comparison_of_pgfed(choice):
    dataset, clients, method = choice.split(",")
    cohort = COHORTS[clients]
    config = pgfed.get_config(choice)
    check_config(config)
    assert config.algorithm.to_dict() == {"name": method} | algorithms.hyperparameters(method)
    assert (config.data.name, config.data.num_clients) == (dataset, int(clients))
    assert (config.rounds, config.clients_per_round) == (300, cohort)
    assert (config.local.batch_size, config.local.drop_remainder) == (10, True)
    assert ("personalized_accuracy_percent" in config.paper) == (method != "ditto")


def test_local_training_of_pgfeds_comparison():
    local = {
        method: pgfed.get_config(f"cifar10,25,{method}").local
        for method in ("pgfed", "fedper", "fedrod", "fedrep", "per_fedavg", "fedfomo")
    }
    found = {method: (one.momentum, one.batch_size) for method, one in local.items()}
    assert found == {
        "pgfed": (0.9, 10),
        "fedper": (0.9, 10),
        "fedrod": (0.0, 10),
        "fedrep": (0.0, 10),
        "per_fedavg": (0.0, 20),
        "fedfomo": (0.0, 10),
    }


def test_fedfomo_of_fedpgs_comparison_sends_as_many_models_as_clients_take_part():
    for percent, number in (("", 10), (",50", 50)):
        config = fedpg.get_config(f"dir,fmnist,fedfomo{percent}")
        check_config(config)
        assert config.algorithm.num_models == config.clients_per_round == number


@pytest.mark.parametrize("method", ["pfedhn", slow("pfedhn_pc"), slow("plgu_ghn")])
def test_hypernetworks_of_plgus_comparison_have_the_same_depth(method):
    config = plgu.get_config(f"cifar10,10,{method}")
    check_config(config)
    depth = algorithms.hyperparameters(method) | config.algorithm.to_dict()
    assert depth["hidden_layers"] == 3


def test_results_of_pgfed_stand_beside_their_protocol():
    def accuracy(choice):
        return pgfed.get_config(choice).paper.personalized_accuracy_percent

    assert accuracy("cifar10,25,pgfed") == 81.02
    assert accuracy("cifar10,100,fedavg") == 63.19
    assert accuracy("cifar100,25,pgfedmo") == 43.44


@pytest.mark.parametrize(
    ("choice", "clients", "labels", "model"),
    [
        ("cifar10,10", 100, 3, "resnet18"),
        slow("cifar10,100", 100, 3, "resnet18"),
        slow("cifar100,10", 100, 10, "wide_resnet"),
        slow("cifar100,100", 100, 10, "wide_resnet"),
        slow("tiny_imagenet,20", 20, 30, "resnet50"),
    ],
)
@pytest.mark.parametrize("method", [slow("fedavg"), "plgu_lf", slow("plgu_ghn"), slow("pfedhn")])
def test_every_comparison_of_plgu(choice, clients, labels, model, method):
    config = plgu.get_config(f"{choice},{method}")
    check_config(config)
    expected = algorithms.hyperparameters(method)
    if method == "plgu_lf":
        expected["num_personal_layers"] = 5
    if method == "pfedhn":
        expected["hidden_layers"] = 3
    assert config.algorithm.to_dict() == {"name": method} | expected
    assert config.data.name == choice.split(",")[0]
    assert config.clients_per_round == int(choice.split(",")[1])
    assert (config.data.num_clients, config.model.name) == (clients, model)
    options = {"classes": labels, "assignment": "random", "amounts": "equal"}
    assert config.data.classes_per_client.to_dict() == options
    assert (config.local.batch_size, config.local.epochs) == (50, 5)
    assert sum(config.data.fractions) == pytest.approx(1.0)
    models = {name.split("_")[0] for name in config.paper}
    assert (
        models
        == {
            "fedavg": {"global"},
            "plgu_lf": {"global", "personalized"},
            "plgu_ghn": {"personalized"},
            "pfedhn": {"personalized"},
        }[method]
    )


def test_results_of_plgu_stand_beside_their_protocol():
    def accuracies(choice, model):
        paper = plgu.get_config(choice).paper
        metrics = ("mean", "worst_5_percent", "best_5_percent")
        return [paper[f"{model}_accuracy_percent_{metric}"] for metric in metrics]

    assert accuracies("cifar10,10,fedavg", "global") == [64.79, 60.69, 68.45]
    assert accuracies("cifar10,100,plgu_lf", "global") == [71.48, 68.92, 73.57]
    assert accuracies("cifar10,100,plgu_lf", "personalized") == [74.23, 72.66, 75.87]
    assert accuracies("tiny_imagenet,20,plgu_ghn", "personalized") == [42.45, 39.92, 44.89]
    assert accuracies("cifar10,10,plgu_ghn,epochs=1", "personalized") == [69.93, 66.89, 73.15]
    assert accuracies("cifar10,10,plgu_lf,rho=0.5", "global") == [66.73, 63.95, 68.31]
    assert accuracies("cifar10,10,plgu_lf,rho=0.5", "personalized") == [69.05, 66.89, 73.50]


def test_what_tables_3_and_4_of_plgu_vary():
    config = plgu.get_config("cifar10,10,plgu_grep,epochs=10")
    assert (config.local.epochs, config.algorithm.rho) == (10, 0.05)
    config = plgu.get_config("cifar10,10,plgu_grep,rho=0.1")
    assert (config.local.epochs, config.algorithm.rho) == (5, 0.1)


@pytest.mark.parametrize("comparisons", [fedpg, *map(slow, [pgfed, pfedmb, plgu])])
def test_no_comparison_is_taken_unasked(comparisons):
    with pytest.raises(UnknownNameError) as raised:
        comparisons.get_config()
    first, *lists = str(raised.value).splitlines()
    kinds = first.removeprefix("After the colon comes ").removesuffix(", found ''.")
    kinds = kinds.partition("[")[0].split(",")
    assert len(kinds) == 3
    for kind, listed in zip(kinds, lists, strict=True):
        assert listed.startswith(f"  {kind}: ")
    assert "fedavg, " in lists[-1]


@pytest.mark.parametrize("method", ["pfedmb", slow("pfedmb_unweighted"), slow("fedavg")])
def test_models_of_pfedmb_are_fine_tuned_at_a_rate_of_their_own(method):
    config = pfedmb.get_config(f"two_classes,15,{method}")
    config.local.learning_rate = 0.5
    check_config(config)
    assert config.evaluation.fine_tune_epochs == 5
    assert config.evaluation.fine_tune_learning_rate == 0.03


def test_the_recipe_of_moon_changes_local_training_and_fine_tuning_alone():
    plain, recipe = (pfedmb.get_config(f"dirichlet,15,ifca{part}") for part in ("", ",moon"))
    check_config(recipe)
    assert (recipe.local.momentum, recipe.local.weight_decay) == (0.9, 1e-5)
    assert recipe.local.augmentation.name == "crop_and_flip"
    recipe.local = plain.local
    recipe.evaluation.fine_tune_learning_rate = plain.evaluation.fine_tune_learning_rate
    assert recipe == plain


@pytest.mark.parametrize(
    ("config", "choices"),
    [
        (fedpg, [f"{partition},{dataset}," for partition, dataset in fedpg._PAPER]),
        slow(pgfed, ["cifar10,25,"]),
        slow(plgu, ["cifar10,10,"]),
        slow(pfedmb, ["pairs,10,"]),
    ],
    ids=["fedpg", "pgfed", "plgu", "pfedmb"],
)
def test_every_row_of_the_tables_is_a_config(config, choices):
    tables = config._PAPER if config is not plgu else {**plgu._GLOBAL, **plgu._PERSONALIZED}
    for choice in choices:
        rows = tables[tuple(choice.split(",")[:2])] if config is fedpg else tables
        for method in rows:
            made = config.get_config(choice + method)
            check_config(made)
            assert len(made.paper) > 0 or rows[method][0] is None

"""Reproduces FedPG's Tables 1 and 2: `--config=configs/fedpg.py:PARTITION,DATASET,METHOD`.

    PARTITION  dir: Dir(0.1), for Table 1; pat: two classes a client, for Table 2; pat_unequal: the
               same in unequal amounts, because the paper does not say which Table 2 has
    DATASET    fmnist, with an MLP; cifar10, with a CNN; or cifar100, with an NF-ResNet-18
    METHOD     an algorithm; or fedpg_gamma0.3, fedpg_gamma0.6, fedpg_gamma1.0 (a constant gamma),
               fedpg_m1 (mean direction), fedpg_m2 (no fairness), fedpg_m3 (no personal direction),
               fedpg_m4 (no memory of absent clients); or fedamp_tuned

A fourth part, as in `dir,fmnist,fedpg,50`, is the percentage of clients in a round; the tables have
10. There are 100 clients. The training and test splits are merged, and each client's examples are
cut in the original ratio. Training: 2,000 rounds in batches of 50, 5 local epochs for methods that
have epochs, SGD with a rate of 0.1 that decays by 0.999 a round. The paper takes the best of the
rates 0.01, 0.05 and 0.1 for each method. pFedMe has 0.05 here, because 0.1 times its `lambda_` is
more than 1.

`docs/results/fedpg/paper.csv` has the paper's results.
"""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.names import parts_of_choice
from tff_pfl.config import default_config

_VARIANTS = {
    "fedpg_gamma0.3": ("fedpg", {"gamma_mode": "constant", "gamma": 0.3}),
    "fedpg_gamma0.6": ("fedpg", {"gamma_mode": "constant", "gamma": 0.6}),
    "fedpg_gamma1.0": ("fedpg", {"gamma_mode": "constant", "gamma": 1.0}),
    "fedpg_m1": ("fedpg", {"direction": "mean"}),
    "fedpg_m2": ("fedpg", {"fairness": False}),
    "fedpg_m3": ("fedpg", {"personalize": False}),
    "fedpg_m4": ("fedpg", {"absent_memory": False}),
    "fedavg": ("fedavg", {"personalized": "local", "weighting": "num_examples"}),
    # Options of the authors' comparison.
    "fedprox": ("fedprox", {"personalized": "local", "mu": 0.5}),
    "fedmgda_plus": ("fedmgda_plus", {"personalized": "local", "eps": 0.1, "server_lr": None}),
    "ditto": ("ditto", {"lambda_": 0.1}),
    "apfl": ("apfl", {"alpha": 0.5, "adaptive": True, "alpha_decay": 0.02}),
    "pfedme": ("pfedme", {"lambda_": 15.0, "beta": 1.0}),
    "fedamp": ("fedamp", {"alpha": 5e-3, "sigma": 0.1, "lambda_": 5e-7}),
    # The options above make FedAMP Local; these are the best on Fashion-MNIST's validation data.
    "fedamp_tuned": (
        "fedamp",
        {"distance_scale": "median", "alpha": 0.1, "sigma": 1.0, "lambda_": 0.01},
    ),
    "fedrep": ("fedrep", {"head_epochs": 5}),
    "splitgp": ("splitgp", {"gamma": 0.2, "lambda_": 0.2, "threshold": 0.2}),
}


def get_config(choice: str = ""):
    """Returns the config for `PARTITION,DATASET,METHOD[,PERCENT]`."""
    partition, dataset, method, *percent = parts_of_choice(
        choice,
        PARTITION=("dir", "pat", "pat_unequal"),
        DATASET=("fmnist", "cifar10", "cifar100"),
        METHOD=[*ALGORITHMS, *_VARIANTS],
        optional="PERCENT",
    )
    if not all(map(str.isdecimal, percent)):
        raise ValueError(f"PERCENT is a whole number, found {percent[0]!r}.")
    algorithm, options = _VARIANTS.get(method, (method, {}))
    config = default_config(algorithm)
    config.algorithm.update(options)
    config.rounds = 2000
    config.data.num_clients = 100
    config.clients_per_round = int(percent[0]) if percent else 10
    if method == "fedfomo":
        config.algorithm.num_models = config.clients_per_round  # as in the authors' comparison
    if partition == "dir":
        config.data.partitioner = "dirichlet"
        config.data.dirichlet.alpha = 0.1
        # As many examples as there are classes.
        config.data.dirichlet.min_examples = 100 if dataset == "cifar100" else 10
    else:
        config.data.partitioner = "classes_per_client"
        config.data.classes_per_client.classes = 2
        config.data.classes_per_client.assignment = "ordered"
        config.data.classes_per_client.amounts = "unequal" if "_" in partition else "equal"
    if dataset == "fmnist":
        config.data.name = "fashion_mnist"
        config.data.fractions = (6 / 7, 0.0, 1 / 7)
        config.data.normalization = "unit"
        config.model.name = "mlp"
    else:
        config.data.name = dataset
        config.data.fractions = (5 / 6, 0.0, 1 / 6)
        config.data.normalization = "cifar"
        config.model.name = "cnn_fedpg" if dataset == "cifar10" else "nf_resnet18"
    config.local.learning_rate = 0.05 if algorithm == "pfedme" else 0.1
    config.local.learning_rate_decay = 0.999
    config.local.epochs = 5
    config.local.batch_size = 50
    config.evaluation.every = 100
    config.checkpoint_every = 100  # the gradient memory makes them large
    return config

"""Reproduces PLGU's Tables 1 to 4: `--config=configs/plgu.py:DATASET,COHORT,METHOD[,VARIED]`.

    DATASET  cifar10: 3 labels a client, ResNet-18
             cifar100: 10 labels a client, WideResNet-28-10
             tiny_imagenet: 30 labels a client, ResNet-50; images in a local folder
    COHORT   clients in a round: 10 or 100 of 100; 20 of 20 for tiny_imagenet
    METHOD   an algorithm
    VARIED   what Table 3 or 4 varies, for cifar10,10: epochs=1, epochs=10, rho=0.1 or rho=0.5

Qu et al., "How to prevent the poor performance clients for personalized federated learning?", CVPR
2023. Data: random labels for each client and equal numbers of examples. Training: networks with
group normalisation, 5 local epochs in batches of 50, radius 0.05, and 5 personal layers for
PLGU-LF. The learning rates and the number of rounds are in a supplement that is not available; the
values here are our choice. So are the normalisation and the cut of a client's examples, which has
the ratio of the original splits.

The networks need a GPU. For a comparison on CPUs choose a small network and fewer personal layers:
`--config.model.name=cnn_pgfed --config.algorithm.num_personal_layers=1`.

`docs/results/plgu/paper.csv` has the paper's results in %: the mean over clients, the lowest and
the top 5 %. Table 1 is of the global model, Table 2 of the personal models. The lowest 5 % of
PLGU-GHN after 10 epochs equals its mean in the paper, which must be a misprint.
"""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.names import check_names, parts_of_choice
from tff_pfl.config import default_config

_DATA = {
    # Clients, labels of each client, cohort sizes, network, shares of training and test examples.
    "cifar10": (100, 3, ("10", "100"), "resnet18", (5 / 6, 0.0, 1 / 6)),
    "cifar100": (100, 10, ("10", "100"), "wide_resnet", (5 / 6, 0.0, 1 / 6)),
    "tiny_imagenet": (20, 30, ("20",), "resnet50", (10 / 11, 0.0, 1 / 11)),
}


def get_config(choice: str = ""):
    """Returns the config for `DATASET,COHORT,METHOD[,VARIED]`."""
    dataset, cohort, method, *varied = parts_of_choice(
        choice,
        DATASET=_DATA,
        COHORT=dict.fromkeys(size for *_, cohorts, _, _ in _DATA.values() for size in cohorts),
        METHOD=ALGORITHMS,
        optional="VARIED",
    )
    num_clients, labels, cohorts, network, fractions = _DATA[dataset]
    check_names(f"COHORT of {dataset}", [cohort], cohorts)
    config = default_config(method)
    config.rounds = 100
    config.clients_per_round = int(cohort)
    config.data.name = dataset
    config.data.num_clients = num_clients
    config.data.partitioner = "classes_per_client"
    config.data.classes_per_client.classes = labels
    config.data.classes_per_client.assignment = "random"
    config.data.fractions = fractions
    config.data.normalization = "half"
    config.model.name = network
    config.local.learning_rate = 0.05
    config.local.epochs = 5
    config.local.batch_size = 50
    config.evaluation.every = 5
    config.checkpoint_every = 5
    if method == "plgu_lf":
        config.algorithm.num_personal_layers = 5
    if method in ("pfedhn", "pfedhn_pc"):
        config.algorithm.hidden_layers = 3  # the paper's hypernetwork, as PLGU-GHN has by default
    if varied:
        _vary(config, varied[0])
    return config


def _vary(config, varied):
    """Sets the value that Table 3 or 4 varies."""
    check_names("variation", [varied], ("epochs=1", "epochs=10", "rho=0.1", "rho=0.5"))
    if (config.data.name, config.clients_per_round) != ("cifar10", 10):
        raise ValueError("Tables 3 and 4 are of cifar10 with 10 clients a round.")
    name, _, value = varied.partition("=")
    if name == "epochs":
        config.local.epochs = int(value)
    elif "rho" in config.algorithm:
        config.algorithm.rho = float(value)
    else:
        raise ValueError(f"{config.algorithm.name!r} has no radius rho to vary.")

"""Reproduces pFedMB's tables: `--config=configs/pfedmb.py:PARTITION,CLIENTS,METHOD[,RECIPE]`.

    PARTITION  pairs (Table 1): clients 0 and 1, 2 and 3, ... have the same two classes;
               two_classes, at random, or dirichlet, Dir(0.5) (Table 2)
    CLIENTS    10 for pairs; 15 with all of them in a round, or 50 with 10 in a round
    METHOD     an algorithm, or pfedmb_unweighted: pFedMB without weighting by alpha
    RECIPE     moon adds momentum 0.9, weight decay 1e-5, and crops and flips of training images, as
               in the code of MOON (Li et al., CVPR 2021); without it, SGD as the paper states it

Mori et al., "Personalized federated learning with multi-branch architecture", IJCNN 2023. Data:
CIFAR-10 with 40,000 training, 10,000 validation and 10,000 test images, all partitioned in the same
way. Training: LeNet, 5 local epochs in batches of 64. Before testing, the model of every client, of
every method, is fine-tuned for 5 epochs. Table 1 has 5 branches and one alpha for all layers.

The paper follows MOON in its network, batches, epochs and Dirichlet partitions. It tunes the rates
and the number of branches (at most 10) on validation data, trains until convergence, and does not
state the concentration of its Dirichlet distribution. The values here are our choice.

`docs/results/pfedmb/paper.csv` has the paper's accuracies in %, means of 3 repetitions.
"""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.names import check_names, parts_of_choice
from tff_pfl.config import default_config

_PARTITIONS = {"pairs": ("10",), "two_classes": ("15", "50"), "dirichlet": ("15", "50")}
_RECIPES = ("moon",)
_VARIANTS = {"pfedmb_unweighted": ("pfedmb", {"alpha_weighted": False})}


def get_config(choice: str = ""):
    """Returns the config for `PARTITION,CLIENTS,METHOD[,RECIPE]`."""
    partition, clients, method, *recipe = parts_of_choice(
        choice,
        optional="RECIPE",
        PARTITION=_PARTITIONS,
        CLIENTS=("10", "15", "50"),
        METHOD=[*ALGORITHMS, *_VARIANTS],
    )
    check_names("RECIPE", recipe, _RECIPES)
    check_names(f"CLIENTS with {partition}", [clients], _PARTITIONS[partition])
    algorithm, variant = _VARIANTS.get(method, (method, {}))
    config = default_config(algorithm)
    config.rounds = 100
    config.clients_per_round = 10 if clients == "50" else int(clients)
    config.data.name = "cifar10"
    config.data.num_clients = int(clients)
    config.data.merge = False
    config.data.num_validation = 10_000
    config.data.normalization = "half"
    if partition == "dirichlet":
        config.data.partitioner = "dirichlet"
        config.data.dirichlet.alpha = 0.5
    else:
        config.data.partitioner = "classes_per_client"
        config.data.classes_per_client.classes = 2
        assignment = "ordered" if partition == "pairs" else "random"
        config.data.classes_per_client.assignment = assignment
    config.model.name = "lenet"
    config.local.learning_rate = 0.05
    config.local.epochs = 5
    config.local.batch_size = 64
    config.evaluation.every = 5
    config.evaluation.fine_tune_epochs = 5
    # This is less than the rate of training: at the rate that branches need, some models diverge.
    config.evaluation.fine_tune_learning_rate = 0.03
    if recipe:
        config.local.learning_rate = 0.01
        config.local.momentum = 0.9
        config.local.weight_decay = 1e-5
        config.local.augmentation.name = "crop_and_flip"
        # The best of 0.001, 0.003 and 0.01 on FedAvg's validation images (Dirichlet, 10 rounds).
        config.evaluation.fine_tune_learning_rate = 0.001
    if algorithm == "pfedmb":
        config.algorithm.branches = 5
        config.algorithm.shared_alpha = partition == "pairs"
    config.algorithm.update(variant)
    return config

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

`config.paper` has the paper's results.
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

# The accuracies of the personalized models (local, synthetic, general) and of the global model,
# each followed by its standard deviation over clients.
_PAPER = {
    ("dir", "fmnist"): {
        "local": (0.947, 0.063, 0.300, 0.129, 0.295, 0.124),
        "fedavg": (0.974, 0.036, 0.760, 0.091, 0.761, 0.095, 0.876),
        "fedrep": (0.968, 0.048, 0.720, 0.097, 0.725, 0.090, 0.841),
        "pfedme": (0.938, 0.057, 0.762, 0.100, 0.773, 0.094, 0.810),
        "ditto": (0.964, 0.044, 0.650, 0.105, 0.659, 0.106, 0.842),
        "fedprox": (0.939, 0.054, 0.763, 0.102, 0.779, 0.091, 0.838),
        "apfl": (0.975, 0.036, 0.758, 0.082, 0.759, 0.092, 0.866),
        "fedamp": (0.947, 0.063, 0.300, 0.129, 0.295, 0.124),
        "fedfomo": (0.937, 0.099, 0.313, 0.127, 0.295, 0.098, 0.508),
        "fedrod": (0.966, 0.045, 0.736, 0.096, 0.744, 0.109, 0.862),
        "splitgp": (0.894, 0.156, 0.457, 0.108, 0.469, 0.120, 0.710),
        "fedmgda_plus": (0.961, 0.053, 0.621, 0.116, 0.628, 0.120, 0.832),
        "fedpg": (0.889, 0.077, 0.879, 0.064, 0.895, 0.051, 0.885),
        "s_fedpg": (0.887, 0.078, 0.883, 0.087, 0.897, 0.050, 0.885),
        "fedpg_gamma0.3": (0.949, 0.044, 0.852, 0.071, 0.866, 0.060, 0.885),
        "fedpg_gamma0.6": (0.952, 0.045, 0.841, 0.071, 0.849, 0.068, 0.885),
        "fedpg_gamma1.0": (0.953, 0.042, 0.839, 0.070, 0.848, 0.072, 0.885),
    },
    ("dir", "cifar10"): {
        "local": (0.788, 0.189, 0.175, 0.095, 0.150, 0.077),
        "fedavg": (0.880, 0.150, 0.461, 0.166, 0.431, 0.139, 0.571),
        "fedrep": (0.877, 0.121, 0.553, 0.141, 0.516, 0.145, 0.645),
        "pfedme": (0.683, 0.147, 0.550, 0.121, 0.526, 0.129, 0.560),
        "ditto": (0.860, 0.135, 0.255, 0.168, 0.217, 0.109, 0.526),
        "fedprox": (0.666, 0.154, 0.556, 0.125, 0.527, 0.121, 0.556),
        "apfl": (0.793, 0.158, 0.605, 0.122, 0.566, 0.138, 0.643),
        "fedamp": (0.794, 0.187, 0.171, 0.096, 0.147, 0.076),
        "fedfomo": (0.820, 0.165, 0.178, 0.097, 0.153, 0.080, 0.242),
        "fedrod": (0.845, 0.168, 0.369, 0.168, 0.341, 0.154, 0.601),
        "splitgp": (0.789, 0.188, 0.166, 0.107, 0.153, 0.084, 0.267),
        "fedmgda_plus": (0.859, 0.136, 0.321, 0.184, 0.282, 0.165, 0.569),
        "fedpg": (0.767, 0.113, 0.742, 0.090, 0.739, 0.129, 0.739),
        "s_fedpg": (0.763, 0.113, 0.760, 0.090, 0.738, 0.130, 0.737),
        "fedpg_gamma0.3": (0.784, 0.109, 0.762, 0.113, 0.735, 0.143, 0.739),
        "fedpg_gamma0.6": (0.788, 0.110, 0.760, 0.111, 0.734, 0.143, 0.739),
        "fedpg_gamma1.0": (0.789, 0.107, 0.759, 0.109, 0.733, 0.142, 0.739),
    },
    ("dir", "cifar100"): {
        "local": (0.878, 0.095, 0.026, 0.025, 0.014, 0.013),
        "fedavg": (0.597, 0.087, 0.255, 0.045, 0.251, 0.043, 0.326),
        "fedprox": (0.713, 0.127, 0.164, 0.049, 0.150, 0.040, 0.211),
        "apfl": (0.600, 0.087, 0.250, 0.045, 0.253, 0.045, 0.322),
        "pfedme": (0.690, 0.137, 0.162, 0.049, 0.151, 0.042, 0.203),
        "ditto": (0.862, 0.091, 0.025, 0.026, 0.014, 0.013, 0.028),
        "fedamp": (0.423, 0.108, 0.055, 0.027, 0.051, 0.019),
        "fedfomo": (0.436, 0.096, 0.058, 0.029, 0.053, 0.019, 0.031),
        "fedrep": (0.580, 0.089, 0.305, 0.043, 0.306, 0.043, 0.340),
        "fedrod": (0.447, 0.075, 0.307, 0.051, 0.302, 0.046, 0.312),
        "splitgp": (0.341, 0.119, 0.041, 0.026, 0.034, 0.020, 0.104),
        "fedmgda_plus": (0.559, 0.089, 0.114, 0.036, 0.111, 0.033, 0.269),
        "fedpg": (0.451, 0.071, 0.426, 0.051, 0.422, 0.049, 0.419),
        "s_fedpg": (0.461, 0.071, 0.437, 0.052, 0.428, 0.049, 0.428),
        "fedpg_gamma0.3": (0.451, 0.076, 0.408, 0.050, 0.405, 0.046, 0.419),
        "fedpg_gamma0.6": (0.463, 0.077, 0.411, 0.053, 0.402, 0.046, 0.419),
        "fedpg_gamma1.0": (0.467, 0.077, 0.409, 0.052, 0.399, 0.046, 0.419),
    },
    ("pat", "fmnist"): {
        "fedpg": (0.897, 0.068, 0.890, 0.045, 0.890, 0.047, 0.890, 0.068),
        "fedpg_m1": (0.820, 0.152, 0.784, 0.069, 0.777, 0.062, 0.778, 0.061),
        "fedpg_m2": (0.859, 0.071, 0.850, 0.053, 0.843, 0.055, 0.841, 0.057),
        "fedpg_m3": (0.895, 0.064, 0.889, 0.064, 0.890, 0.068, 0.890, 0.068),
        "fedpg_m4": (0.867, 0.089, 0.841, 0.056, 0.836, 0.057, 0.844, 0.056),
    },
    ("pat", "cifar10"): {
        "fedpg": (0.749, 0.106, 0.746, 0.056, 0.742, 0.062, 0.741, 0.060),
        "fedpg_m1": (0.628, 0.126, 0.565, 0.070, 0.566, 0.070, 0.563, 0.070),
        "fedpg_m2": (0.635, 0.113, 0.629, 0.073, 0.629, 0.078, 0.629, 0.078),
        "fedpg_m3": (0.749, 0.110, 0.745, 0.058, 0.741, 0.060, 0.741, 0.060),
        "fedpg_m4": (0.698, 0.091, 0.637, 0.070, 0.643, 0.070, 0.651, 0.064),
    },
}
_COLUMNS = [
    f"{metric}_{what}"
    for metric in ("l_acc", "s_acc", "g_acc", "gm_acc")
    for what in ("mean", "std")
]


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
    results = _PAPER.get((partition.removesuffix("_unequal"), dataset), {}).get(method, ())
    config.paper.update(dict(zip(_COLUMNS, results, strict=False)))
    return config

"""Trains on the benchmark tasks of `tff.simulation.baselines`, personalized.

`--config=configs/tff_baselines.py:TASK,ALGORITHM[,real]`: `cifar100`, `emnist`, `autoencoder`,
`shakespeare`, `tags` or `words`, with TFF's model, preprocessing and clients. Without `real`, it
trains on the small synthetic data that TFF ships, which only shows that everything works. The real
data are downloaded to `--config.data.data_dir`. No paper has these runs: learning rates are TFF's
order of magnitude and not tuned.
"""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.names import TFF_TASKS, parts_of_choice
from tff_pfl.config import default_config

# The layers that a client of FedPer and related methods keeps, and the learning rate.
_HEADS = {
    "cifar100": ("dense", 0.01),
    "emnist": ("dense_1", 0.1),
    "autoencoder": ("dense_7", 0.5),
    "shakespeare": ("dense", 0.3),
    "tags": ("dense", 0.1),
    "words": ("dense_1", 0.3),
}
_SYNTHETIC_WORDS = 60  # The size of the vocabulary of TFF's synthetic posts.


def get_config(choice: str = "shakespeare,fedrep"):
    """Returns the config for a task and an algorithm, with an optional last part "real"."""
    task, algorithm, *real = parts_of_choice(
        choice, optional="real", task=TFF_TASKS, algorithm=ALGORITHMS
    )
    head, learning_rate = _HEADS[task]
    config = default_config(algorithm)
    config.rounds = 100 if real else 5
    config.clients_per_round = 50 if real else 2
    config.data.name = f"tff_{task}" if real else f"tff_{task}_synthetic"
    config.data.partitioner = "natural"
    config.data.merge = False
    config.data.normalization = "none"
    config.model.name = f"tff_{task}"
    if task == "words" and not real:
        config.model.options.vocabulary = _SYNTHETIC_WORDS
    config.local.learning_rate = learning_rate
    if algorithm == "pfedme":  # It needs a product with `lambda_` below 1.
        config.local.learning_rate = min(learning_rate, 0.05)
    config.local.epochs = 1
    config.local.batch_size = 10
    config.evaluation.every = 20 if real else 5
    if "memory_size" in config.algorithm and not real:
        config.algorithm.memory_size = 3  # the most clients of a task; each takes a model's memory
    for key in ("personal_layers", "head_layers"):
        if key in config.algorithm:
            config.algorithm[key] = (head,)
    return config

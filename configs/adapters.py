"""Trains adapters of a frozen network on handwritten digits, as published or by any algorithm.

`--config=configs/adapters.py:METHOD --config.model.start=FILE`. The file has weights of the network
`mlp` with 64 hidden units, such as that of docs/guides/pretrained.md; without a file, the frozen
network is random. No paper has this protocol.
"""

from tff_pfl.config import default_config

# By published method: the algorithm, the options of `models.lora`, and FedPer's personal layers.
METHODS = {
    "fedsa_lora": ("fedper", {}, ("*_up",)),
    "ffa_lora": ("fedavg", {"frozen_down": True}, None),
    "feddpa": ("fedper", {"own_share": 0.5}, ("*_own_*",)),
    "bitfit": ("fedavg", {"layers": (), "trained": ("*/bias", "head")}, None),
}


def get_config(method: str = "fedsa_lora"):
    """Returns the config for a key of `METHODS`, or for an algorithm that trains LoRA."""
    algorithm, adapters, personal_layers = METHODS.get(method, (method, {}, None))
    config = default_config(algorithm)
    config.rounds = 20
    config.clients_per_round = 10
    config.data.update({"name": "digits", "num_clients": 20, "partitioner": "dirichlet"})
    config.data.dirichlet.min_examples = 20
    config.model.name = "mlp"
    config.model.options.hidden = (64,)
    config.adapters.update({"rank": 4, "trained": ("head",), **adapters})
    config.local.update({"learning_rate": 0.1, "epochs": 2, "batch_size": 10})
    config.evaluation.every = 10
    if personal_layers is not None:
        config.algorithm.personal_layers = personal_layers
    return config

"""Writes an example of each method, which runs as it stands."""

from tff_pfl.algorithms import ALGORITHMS

_OPTIONS = {
    "apfl": "alpha=0.25",
    "ditto": "lambda_=1.0",
    "fedala": "sample_share=0.5",
    "fedamp": 'distance_scale="median", sigma=1.0, alpha=0.1, start="mixture"',
    "fedavg": 'weighting="uniform"',
    "fedbabu": "fine_tune_learning_rate=0.01",
    "fedbn": 'weighting="num_examples"',
    "feddyn": "alpha=0.1",
    "fedfomo": "num_models=8",
    "fedmgda_plus": "eps=1.0",
    "fedpac": "head_epochs=2",
    "fedper": 'weighting="uniform"',
    "fedpg": "memory_size=20",
    "fedprox": "mu=0.1",
    "fedrep": "head_epochs=2",
    "fedrod": 'personal_head="hyper"',
    "fedsam": "rho=0.1",
    "ifca": "num_clusters=3",
    "lg_fedavg": "alternate=True",
    "per_fedavg": "inner_learning_rate=0.05",
    "pfedhn": "embedding_dim=8",
    "pfedmb": "branches=3",
    "pfedme": "lambda_=5.0",
    "pgfed": "mu=0.05",
    "plgu_grep": "body_epochs=2",
    "plgu_lf": "num_personal_layers=2",
    "scaffold": 'personalized="local"',
    "splitgp": "threshold=0.4",
}
"""An option of each method, to be changed."""

_PROGRAM = """\
{imports}import tff_pfl

digits = tff_pfl.load("digits")
dataset = tff_pfl.federate(
    digits, num_clients=20, partitioner="dirichlet", seed=0
)
{model}sgd = tff_pfl.OPTIMIZERS["sgd"](0.1)
local = tff_pfl.LocalTraining(sgd, epochs=5, batch_size=10)
methods = {{
{methods}}}
compared = tff_pfl.compare(dataset, methods, rounds={rounds}, clients_per_round=10)
print(compared)
"""
_MLP = """\
model = tff_pfl.models.build(
    "mlp", dataset.image_shape, dataset.num_classes, hidden=(64,)
)
"""
_NORMALIZED = '''\


def network():
    """Builds a network with a normalisation layer, which each client keeps."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
            tf.keras.layers.Dense(64),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(10),
        ]
    )


def preprocess(x):
    """Scales pixels."""
    return tf.cast(x, tf.float32) / 255


model = tff_pfl.from_keras(
    network, input_shape=(8, 8, 1), preprocess=preprocess
)
'''


def code(name: str, title: str) -> str:
    """Returns a program that compares a method with training alone and with FedAvg.

    Args:
        name: A key of `ALGORITHMS`.
        title: The method's name in its paper.
    """
    return _PROGRAM.format(
        imports="import tensorflow as tf\n\n" if name == "fedbn" else "",
        model=_NORMALIZED if name == "fedbn" else _MLP,
        methods=_methods(name, title),
        rounds=300 if name == "fedpg" else 30,  # FedPG makes one step a round
    )


def _methods(name: str, title: str) -> str:
    federation = {"num_clients": 20, "clients_per_round": 10}
    needed = ALGORITHMS.parameters(name).keys()
    options = [f"{key}={value}" for key, value in federation.items() if key in needed]
    options += [_OPTIONS[name]] if name in _OPTIONS else []
    calls = {"Local": '"local", model, local', "FedAvg": '"fedavg", model, local'}
    calls[title] = ", ".join([f'"{name}", model, local', *options])
    lines = []
    for label, call in calls.items():
        line = f'    "{label}": tff_pfl.make({call}),'
        if len(line) > 80:
            indented = call.replace(", ", ",\n        ")
            line = line.replace(call, f"\n        {indented},\n    ")
        lines.append(line)
    return "\n".join(lines) + "\n"

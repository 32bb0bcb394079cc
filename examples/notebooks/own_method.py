# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own method
#
# From FedAvg to a published method in 40 lines, which the library does not have: Federated
# Reconstruction (Singhal et al., "Federated reconstruction: partially local federated learning",
# NeurIPS 2021). Then its tests, and a study against Ditto.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import numpy as np
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import testing, trees
from tff_pfl.arguments import ranges

tff_pfl.set_graph_context()
sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# ## FedAvg
#
# A method is a function that returns an `Algorithm`, here by the template `averaging`. It needs the
# server's first value, the work of a client in a round, and what a client's own model is. That is
# FedAvg:


# %%
def plain(model, local):
    """Makes FedAvg: clients train the global model, the server averages the changes."""

    def client_work(weights, state, examples, context):
        trained = local.train(model, weights, examples, context)
        return tff_pfl.ClientOutput(
            state=state,
            upload=trees.subtract(trained.weights, weights),
            metrics=trained.totals,
        )

    return tff_pfl.averaging(
        server_init=model.init,
        client_work=client_work,
        personalize=lambda weights, state, examples, context: weights,
    )


# %% [markdown]
# ## Federated Reconstruction
#
# The model is split into a body and a head. A client never sends its head, as in FedPer, but it
# does not keep it either: it *reconstructs* the head whenever it needs one, from a common start, on
# its own examples and with the body fixed. A round of the paper's algorithm 1:
#
#     down    body
#     client  head_i = LocalTraining(start) for some epochs, with the body it received
#             body_i = LocalTraining(body), with the head
#     up      body_i - body
#     server  body <- body + sum_i p_i (body_i - body)
#
# The paper may split a client's examples between the two steps. Here both use all, as by default in
# TFF's own implementation. The lines that differ from FedAvg are those with `parts` and
# `reconstructed`.


# %%
@tff_pfl.ALGORITHMS.register("fed_recon")
@tff_pfl.extends(tff_pfl.averaging)
@tff_pfl.takes(reconstruction_epochs=ranges.whole(1))
def fed_recon(
    model,
    local,
    *,
    personal_layers=None,
    reconstruction_epochs: int = 5,
    **options,
):
    """Makes Federated Reconstruction; without personal layers, it is FedAvg.

    Args:
        model: The model.
        local: The local training of head and body.
        personal_layers: The names of the head's layers; default the model's last layer.
        reconstruction_epochs: The epochs of the head.
        **options: Options of `averaging`.
    """
    parts = tff_pfl.layer_parts(model, personal=personal_layers)

    def reconstructed(body, examples, context):
        _, start = parts.split(model.init(0))
        of_head = parts.personal_model(model, body)
        epochs = reconstruction_epochs
        return local.train(
            of_head, start, examples, context, epochs=epochs
        ).weights

    def client_work(body, state, examples, context):
        head = reconstructed(body, examples, context)
        trained = local.train(
            parts.shared_model(model, head), body, examples, context
        )
        return tff_pfl.ClientOutput(
            state=state,
            upload=trees.subtract(trained.weights, body),
            metrics=trained.totals,
        )

    def personalize(body, state, examples, context):
        return parts.merge(body, reconstructed(body, examples, context))

    return tff_pfl.averaging(
        server_init=lambda seed: parts.split(model.init(seed))[0],
        client_work=client_work,
        personalize=personalize,
        **options,
    )


# %% [markdown]
# `register` gives the method a name for `make` and for configs; `takes` checks its numbers, and
# `extends` gives it the options of `averaging`: a server optimizer, an aggregator, a weighting. A
# typing mistake or an impossible number is one sentence:

# %%
for wrong in ({"reconstruction_epoch": 3}, {"reconstruction_epochs": 0}):
    try:
        tff_pfl.make(
            "fed_recon", testing.tiny_model(), testing.tiny_local(), **wrong
        )
    except (TypeError, ValueError) as error:
        print(error)

# %% [markdown]
# ## Its tests
#
# `EagerProcess` computes rounds block by block, without TFF: a debugger can step through a client.
# The degenerate value of an option is the best first test. Without a head, the numbers must be
# those of FedAvg, bit for bit:

# %%
model, local = testing.tiny_model(), testing.tiny_local()


def one_round(algorithm):
    """Returns the server's weights after a round of three clients."""
    process = testing.EagerProcess(algorithm)
    clients = [
        tff_pfl.Client(
            np.int32(i),
            process.initialize_client(i),
            testing.tiny_examples(9, seed=i),
        )
        for i in range(3)
    ]
    state, _, _ = process.next(process.initialize(), clients)
    return state.algorithm.weights


without_head = tff_pfl.make("fed_recon", model, local, personal_layers=[])
for own, fedavg in zip(
    tf.nest.flatten(one_round(without_head)),
    tf.nest.flatten(one_round(plain(model, local))),
    strict=True,
):
    np.testing.assert_array_equal(own, fedavg)

# %% [markdown]
# The contract has what every method must do, on a tiny federation: types; equal rounds from equal
# seeds; a client without examples, with NaN, or seen for the first time; the numbers of
# `EagerProcess`. In a test file, `pytest.mark.parametrize("check", testing.CHECKS)` makes a test of
# each check.

# %%
subject = testing.Subject.of(fed_recon, starts_global=False)
for check in testing.CHECKS:
    check(subject)
    print("passed:", check.__name__)

# %% [markdown]
# ## A study against Ditto
#
# Twenty clients have digits of different kinds, and only five take part in a round. Ditto keeps a
# model with each client; the new method keeps nothing.


# %%
def clients_of(seed):
    """Spreads the digits over 20 clients, differently for each seed."""
    return tff_pfl.federate(
        tff_pfl.load("digits"),
        num_clients=20,
        partitioner="dirichlet",
        partition_args={"alpha": 0.3, "min_examples": 20},
        fractions=(0.75, 0, 0.25),
        seed=seed,
    )


# %%
def network():
    """Builds a small network of 8x8 pixels; its last layer is called "digits"."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
            tf.keras.layers.Dense(64, "relu", name="hidden"),
            tf.keras.layers.Dense(10, name="digits"),
        ]
    )


# %%
model = tff_pfl.from_keras(
    network,
    input_shape=(8, 8, 1),
    preprocess=lambda x: tf.cast(x, tf.float32) / 255,
)
local = tff_pfl.LocalTraining(
    tff.learning.optimizers.build_sgdm(0.1), epochs=5, batch_size=10
)

# %%
methods = {
    "Ditto": tff_pfl.make("ditto", model, local, lambda_=1.0),
    "FedRecon": tff_pfl.make(
        "fed_recon", model, local, reconstruction_epochs=10
    ),
}
methods["FedRecon"]

# %%
compared = tff_pfl.compare(
    clients_of,
    methods,
    rounds=30,
    seeds=(0, 1, 2),
    clients_per_round=5,
    folder="runs/own_method",
)
compared

# %%
compared.plot()

# %% [markdown]
# In the first rounds FedRecon is ahead: a client needs no round of its own to have a good head,
# only its examples. Under Ditto, most clients have hardly trained their own model by then: five of
# twenty take part in a round. After 30 rounds Ditto is ahead by three points. With three seeds, the
# interval of the difference includes 0: the table does not prove it.

# %% [markdown]
# A point is a client of one of the seeds; below the line, it was better off with Ditto.

# %%
compared.plot_clients()

# %% [markdown]
# Half of the clients are worse than with Ditto, most of them by one or two pictures of their few.
# That is the price of a method whose clients keep nothing, and send less: it suits phones that are
# seen once. Where the same clients come back, as here, let them keep a model.
#
# Where to go on: [the guide](../../docs/guides/own_method.md) has methods whose clients keep a
# state, and servers that do more than average. Put the function in a file, and any config trains
# it: `train.py --config=configs/digits.py:fed_recon --config.imports="('my_file',)"`.

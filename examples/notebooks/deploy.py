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
# # A new client arrives; a client leaves; a model is deployed
#
# A federation is trained; what does a new client get, at once and later? What remains of a client
# that leaves? How does a client's model get to a machine that has TensorFlow and nothing else? The
# whole notebook takes half a minute on two cores.

# %%
import tff_pfl  # before TensorFlow

tff_pfl.prepare_process()  # TensorFlow does not report each file that it writes

import functools
import pathlib
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import evaluation

tff_pfl.set_graph_context()
sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# Thirty-two people have handwritten digits, each mostly of a few classes. The first 24 are members
# of the federation, the other 8 join later. Ditto trains a global model, and for each client a
# model of its own that stays near the global one. `further_models` are evaluated besides: here the
# client's model after five more epochs on its examples.

# %%
everybody = tff_pfl.federate(
    tff_pfl.load("digits"),
    num_clients=32,
    partitioner="dirichlet",
    partition_args={"alpha": 0.3, "min_examples": 20},
    fractions=(0.4, 0.0, 0.6),
    seed=0,
)
members, newcomers = list(range(24)), list(range(24, 32))


# %%
def network():
    """Builds a small network."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
            tf.keras.layers.Dense(32, "relu", name="hidden"),
            tf.keras.layers.Dense(10, name="head"),
        ]
    )


model = tff_pfl.from_keras(
    network,
    input_shape=(8, 8, 1),
    preprocess=lambda x: tf.cast(x, tf.float32) / 255,
)

# %%
sgd = tff.learning.optimizers.build_sgdm(0.05, momentum=0.5)
local = tff_pfl.LocalTraining(sgd, epochs=5, batch_size=10)
ditto = tff_pfl.make("ditto", model, local, lambda_=1.0)
process = tff_pfl.compose(
    ditto,
    everybody.examples_type,
    further_models={"fine_tuned": tff_pfl.fine_tuned(ditto, local, epochs=5)},
)

# %% [markdown]
# Clients come and go below, so we write the loop over rounds ourselves. A `ClientStateStore` keeps
# what each client keeps, here its own model.


# %%
@functools.cache
def evaluation_of(process):
    """Builds the evaluation of a process, once."""
    return evaluation.for_each_client(process, evaluation.measured)


class Federation:
    """A server's state and the states of its clients, which train and are evaluated."""

    def __init__(self, process):
        self.process = process
        self.state = process.initialize()
        store = tff_pfl.ClientStateStore(
            process.initialize_clients, process.client_state_type
        )
        self.source = tff_pfl.CohortDataSource(
            everybody, store, process.client_type, seed=0
        )
        self._rng = np.random.default_rng(0)

    def train(self, clients, rounds=1):
        """Trains with cohorts of at most 12 of these clients."""
        for _ in range(rounds):
            cohort = self._rng.choice(
                clients, min(12, len(clients)), replace=False
            )
            output = self.process.next(
                self.state, self.source.select_clients(cohort)
            )
            self.source.store.put(cohort, output.clients)
            self.state = output.state

    def accuracies(self, clients):
        """Returns the accuracy of each model on the test pictures of each client."""
        found = evaluation_of(self.process)(self.state, self.source, clients)
        accuracies = [
            {name: np.divide(*m["accuracy"]) for name, m in of.items()}
            for of in found
        ]
        return pd.DataFrame(accuracies, index=clients)


# %%
federation = Federation(process)
federation.train(members, rounds=30)
federation.accuracies(members).mean().round(3)

# %% [markdown]
# ## A new client arrives
#
# At once it can get the global model, and fine-tune it on its own examples: for that, the server
# needs nothing of it. Later, after it took part in rounds, it has a model of its own by Ditto. Is
# either better than what it could do alone?

# %%
at_once = federation.accuracies(newcomers)
federation.train(members + newcomers, rounds=20)
later = federation.accuracies(newcomers)
alone = Federation(
    tff_pfl.compose(
        tff_pfl.make("local", model, local), everybody.examples_type
    )
)
alone.train(newcomers, rounds=20)

arrived = pd.DataFrame(
    {
        "alone": alone.accuracies(newcomers)["personalized"],
        "global model, at once": at_once["global"],
        "fine-tuned, at once": at_once["fine_tuned"],
        "Ditto, after 20 rounds": later["personalized"],
    }
)
axes = sns.boxplot(arrived, orient="h", color="0.9", showfliers=False)
sns.stripplot(arrived, orient="h", size=8, alpha=0.7, ax=axes)
axes.set(xlabel="accuracy on a newcomer's test pictures")
plt.show()
arrived.mean().round(3)

# %% [markdown]
# A point is a newcomer under a model; further right is better.
#
# * **Alone**, in twenty rounds of training on their own few pictures, some newcomers do better than
#   with the **global model**, and some do worse.
# * **Fine-tuned at once**, the global model already beats both in the mean.
# * **Ditto, after 20 rounds** is the best in the mean: the newcomer has trained its own model, and
#   the global model has learned from newcomers as well.
#
# Runs by a config simulate newcomers with `config.new_clients.number`; see
# [new clients](../../docs/guides/new_clients.md).

# %% [markdown]
# ## A client leaves
#
# One member has most of the eights, and leaves after 50 rounds. Does anything remain of it?

# %%
eights = everybody.class_counts()[members, 8]
leaver = int(np.argmax(eights))
print(f"Client {leaver} has {eights.max()} of {eights.sum()} eights.")
staying = [client for client in members + newcomers if client != leaver]

# %%
anew = Federation(process)
anew.train(staying, rounds=50)

rows = []
for round_num in range(50, 91, 4):
    after = federation.accuracies([leaver]).loc[leaver]
    without = anew.accuracies([leaver]).loc[leaver]
    accuracies = {
        "its own model": after["personalized"],
        "global model that it left": after["global"],
        "global model without it from the start": without["global"],
    }
    rows += [
        {"round": round_num, "model": name, "accuracy": value}
        for name, value in accuracies.items()
    ]
    federation.train(staying, rounds=4)
    anew.train(staying, rounds=4)

axes = sns.lineplot(
    pd.DataFrame(rows),
    x="round",
    y="accuracy",
    hue="model",
    style="model",
    markers=True,
)
axes.set(
    ylim=(0, 1), ylabel=f"accuracy on the test pictures of client {leaver}"
)
axes.legend(title=None)
plt.show()

# %% [markdown]
# * **Its own model** stays as good as it was, wherever the client takes it. Nobody trains it.
# * The **global model that it left** is better on its pictures at first than one that was trained
#   **without it from the start**. After some twenty rounds of the others, both are alike: what the
#   client taught fades.
#
# Fading is no proof that nothing is left. To forget a client for certain, train anew without it.
# With [differential privacy](../../docs/guides/privacy.md) there is less to forget: epsilon bounds
# what the global model can tell of any client.
#
# In a deployment the state of a client is on its own device. In a simulation it is in the store,
# which forgets it. Should the client return, it starts as one that never took part:

# %%
store = federation.source.store
num_before = len(store.known_clients())
store.forget([leaver])
store.commit()
print(
    f"{num_before} clients had states, now {len(store.known_clients())} have."
)
again = federation.accuracies([leaver]).loc[leaver, "personalized"]
print(
    f"The own model of client {leaver}, if it joined again: accuracy {again:.3f}."
)

# %% [markdown]
# ## A model is deployed
#
# `ModelSaver` writes models as TensorFlow SavedModels. They take inputs as they are stored, here
# whole numbers from 0 to 255: `preprocess` is a part of them. We take the newcomer who gains the
# most by a model of its own.

# %%
gains = later["personalized"] - later["global"]
newcomer = int(gains.idxmax())
clients = federation.source.select_clients([newcomer])
(personal,) = process.personalize(federation.state, clients)
saver = tff_pfl.ModelSaver(model, everybody.image_shape, everybody.x_dtype)
models = {"own": personal, "global": process.global_weights(federation.state)}
for name, weights in models.items():
    saver.save(weights, f"deployed/{name}")
pictures = everybody.examples(newcomer, "test")
np.save("pictures.npy", pictures.x)

# %% [markdown]
# Another program loads them. It needs TensorFlow, and neither this library nor TFF.

# %%
pathlib.Path("serve.py").write_text(
    """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf

pictures = np.load("pictures.npy")
for name in ("own", "global"):
    model = tf.saved_model.load(f"deployed/{name}")
    np.save(f"{name}.npy", model(pictures))
print("imported:", {"tensorflow", "tff_pfl", "tensorflow_federated"} & set(sys.modules))
"""
)
served = subprocess.run(
    [sys.executable, "serve.py"], capture_output=True, text=True, check=True
)
print(served.stdout, end="")
logits = {name: np.load(f"{name}.npy") for name in models}
for name, weights in models.items():
    here = model.apply(weights, tf.constant(pictures.x), training=False)
    np.testing.assert_allclose(logits[name], here, rtol=1e-5, atol=1e-5)

# %%
answers = {name: of_model.argmax(axis=1) for name, of_model in logits.items()}
shown = np.flatnonzero(answers["own"] != answers["global"])[:8]
figure, axes = plt.subplots(
    1, len(shown), figsize=(1.2 * len(shown), 2), squeeze=False
)
for example, of_example in zip(shown, axes[0], strict=True):
    of_example.imshow(pictures.x[example, :, :, 0], cmap="gray_r")
    of_example.set_title(
        f"own: {answers['own'][example]}\nglobal: {answers['global'][example]}"
    )
    of_example.set(xlabel=f"is a {pictures.y[example]}", xticks=[], yticks=[])
figure.tight_layout()
plt.show()
accuracies = {
    name: np.mean(found == pictures.y) for name, found in answers.items()
}
print(f"newcomer {newcomer}:", pd.Series(accuracies).round(3).to_dict())

# %% [markdown]
# The digits to which the two deployed models give different answers. Most of them are right under
# the newcomer's own model, and its accuracy, printed below the pictures, is higher. The other
# program has computed the same logits as this one, up to rounding.
#
# Here the loop over rounds was our own. The `Run` that `tff_pfl.train` returns writes its models in
# this form by `run.export("deployed")`, one folder a client; after `compare`, so does
# `compared.run("Ditto")`, and for a run by a config `programs/export.py`. `run.export_new_clients`
# writes fine-tuned models of clients that did not train. See the
# [guide to deployment](../../docs/guides/deployment.md).

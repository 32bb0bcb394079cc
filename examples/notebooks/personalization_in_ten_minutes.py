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
# # Personalization in ten minutes
#
# Twenty people write digits, and nobody has all ten. Shall each train a model alone, shall all
# train one together, or is there something better, and how sure is that? One call compares any
# methods on any data; here it compares four. If clients, rounds and global models are new to you,
# begin with [federated learning from zero](from_zero.py).

# %%
import tff_pfl  # before TensorFlow, which is then silent

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# ## Data for each seed
#
# One federation may favour a method by chance. So `compare` takes a function from a seed to the
# data: each seed deals out the 1,797 digits of scikit-learn anew, unevenly, by a Dirichlet
# distribution. A quarter of each client's pictures are kept for tests.


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
figure, panels = plt.subplots(1, 3, figsize=(10, 2.6), sharey=True)
for seed, axes in enumerate(panels):
    counts = clients_of(seed).class_counts("train")
    sns.heatmap(counts.T, cmap="Blues", cbar=False, ax=axes)
    axes.set(title=f"seed {seed}", xlabel="client", xticks=[])
panels[0].set_ylabel("digit")
plt.show()

# %% [markdown]
# A column is a client, and a darker field more pictures of a digit. Most clients know three or four
# digits well, and no two federations are alike.

# %% [markdown]
# ## Four methods
#
# A model is a Keras network whose layers have names. `LocalTraining` is what a client does in a
# round. The methods are those of the papers; they differ in what is shared:
#
# * **Local**: nothing. Each client trains a model alone.
# * **FedAvg**: everything. All clients train one model.
# * **FedPer**: the layer `hidden`. Each client has a layer `digits` of its own.
# * **Ditto**: one model of all, as FedAvg, and a model for each client that is pulled towards it.


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


def scaled(pixels):
    """Maps bytes to numbers from 0 to 1."""
    return tf.cast(pixels, tf.float32) / 255


# %%
model = tff_pfl.from_keras(network, input_shape=(8, 8, 1), preprocess=scaled)
local = tff_pfl.LocalTraining(
    tff.learning.optimizers.build_sgdm(0.1), epochs=5, batch_size=10
)
methods = {
    "Local": tff_pfl.make("local", model, local),
    "FedAvg": tff_pfl.make("fedavg", model, local),
    "FedPer": tff_pfl.make("fedper", model, local, personal_layers=["digits"]),
    "Ditto": tff_pfl.make("ditto", model, local, lambda_=1.0),
}
methods["Ditto"]

# %% [markdown]
# `compare` trains each method with each seed and evaluates each client's own model on its own test
# pictures. Each run is a folder in `runs/ten_minutes`: call it again, and nothing is trained twice.

# %%
compared = tff_pfl.compare(
    clients_of,
    methods,
    rounds=30,
    seeds=(0, 1, 2),
    clients_per_round=10,
    folder="runs/ten_minutes",
)
compared

# %% [markdown]
# A row is a method, and a value a mean over three seeds, each of which draws other clients.
#
# * `gain` is how much better the same clients are than under Local, the first method. The interval,
#   from `gain_low` to `gain_high`, and the `p_value` belong to a t test on the three seeds;
#   `p_holm` is corrected for three methods.
# * `hurt` and `helped` are the shares of clients that are worse and better than alone. A method
#   just as good as Local would have as many of both.
# * `bytes_up` is what a client sends in a round.
#
# Sharing pays: every method beats Local on average. The gain of Ditto is the largest and the
# surest, that of FedPer the rarest to hurt anybody.
#
# `compared.table("loss")` shows another metric, `baseline="FedAvg"` gains over FedAvg. Options of
# `compare` are the fields of an `Experiment`: `rounds`, `clients_per_round`, `evaluation` and
# [others](../../docs/guides/experiments.md).

# %% [markdown]
# ## How fast they learn

# %%
compared.plot()

# %% [markdown]
# The accuracy of a client's own model on its own test pictures, averaged over clients. Alone,
# clients soon learn what their few pictures have to teach, and stop at 90 %. FedAvg begins slowly,
# because its model has to suit everybody, and passes them. FedPer is ahead at first, and Ditto in
# the end.

# %% [markdown]
# ## Gains and losses

# %%
compared.plot_clients()

# %% [markdown]
# A point is a client of one of the seeds: to the right its accuracy alone, upwards that under the
# method. Clients above the line gain; for errors, clients below. Triangles are hurt: under FedAvg
# nearly every fifth client, some by far, because one model has to suit everybody. With FedPer and
# Ditto fewer are hurt, and those by little.

# %% [markdown]
# ## The clients that lose

# %%
gains = compared.clients()[["FedAvg", "FedPer", "Ditto"]].sub(
    compared.clients()["Local"], axis=0
)
gains["pictures"] = np.concatenate(
    [clients_of(seed).sizes("train") for seed in (0, 1, 2)]
)
gains = gains.melt("pictures", var_name="method", value_name="gain")
grid = sns.relplot(gains, x="pictures", y="gain", col="method", height=2.8)
grid.refline(y=0, color="black", linestyle="-")
grid.set(
    xlabel="training pictures of a client", ylabel="accuracy above Local's"
)
grid.set_titles("{col_name}")
plt.show()

# %% [markdown]
# Small clients gain most, up to a third: their own pictures are too few. Under FedAvg some lose by
# far, also two of the three with the most pictures: they have to tell few digits apart, and learn
# that alone, while the common model offers all ten. A personal part takes most of this loss away
# and keeps the gain. That is what personalization is for.
#
# To go on: [which method for my federation?](which_method.py),
# [your own data and task](own_data_and_task.py), [your own method](own_method.py). On the command
# line, `.venv/bin/python programs/report.py table runs/ten_minutes` shows the same runs.

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
# # Which method for my federation?
#
# It depends on how clients differ. Here the same digits are spread over twenty clients in four
# ways, and eight methods are trained on each, with three seeds. All 96 runs take some minutes, so
# their results are below as a table; a part of them is trained here.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import analysis

EVERYTHING = False  # True trains all 96 runs
sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# ## Four ways to differ
#
# * **Labels**: a client has few of the ten digits.
# * **Amounts**: all clients have all digits, but some have a dozen pictures, and one nearly 300.
# * **Features**: clients turn their pictures by 0, 90, 180 or 270 degrees.
# * **Concepts**: clients disagree what a picture is called. There are two groups; what is a 0 for
#   the one is a 1 for the other, and so on.

# %%
CLIENTS = 20
digits = tff_pfl.load("digits")


def spread(seed, **how):
    """Spreads the digits over the clients; a quarter of each client's are for tests."""
    return tff_pfl.federate(
        digits, num_clients=CLIENTS, fractions=(0.75, 0, 0.25), seed=seed, **how
    )


def labels(seed):
    """Draws the shares of the digits of each client from a Dirichlet distribution."""
    how = {"alpha": 0.3, "min_examples": 20}
    return spread(seed, partitioner="dirichlet", partition_args=how)


def amounts(seed):
    """Gives client 0 a dozen pictures, and each further client more than the one before."""
    order = np.random.default_rng(seed).permutation(len(digits.y))
    sizes = np.geomspace(12, 285, CLIENTS).astype(int)
    *parts, _ = np.split(order, np.cumsum(sizes))
    clients = [np.split(part, [3 * len(part) // 4]) for part in parts]
    return tff_pfl.FederatedDataset.from_client_arrays(
        [
            (digits.x[a], digits.y[a], digits.x[b], digits.y[b])
            for a, b in clients
        ],
        10,
    )


# %%
def changed(seed, change):
    """Spreads the digits evenly and applies `change(client, x, y)` to the clients' examples."""
    even = spread(seed, partitioner="iid")
    x, y = even.x.copy(), even.y.copy()
    for client in range(CLIENTS):
        rows = np.concatenate(
            [even.partition.train[client], even.partition.test[client]]
        )
        x[rows], y[rows] = change(client, x[rows], y[rows])
    return tff_pfl.FederatedDataset(x, y, 10, even.partition)


def features(seed):
    """Turns the pictures of client `i` by `i` right angles."""
    return changed(
        seed, lambda client, x, y: (np.rot90(x, client, axes=(1, 2)), y)
    )


def concepts(seed):
    """Calls the digits 1, 0, 3, 2, ... at every other client."""
    return changed(seed, lambda client, x, y: (x, y ^ 1 if client % 2 else y))


federations = {
    "labels": labels,
    "amounts": amounts,
    "features": features,
    "concepts": concepts,
}
concepts(0)

# %%
figure, panels = plt.subplots(2, 4, figsize=(8, 2.4))
for column, (kind, federation) in enumerate(federations.items()):
    for row, client in enumerate((3, 18)):
        examples = federation(0).examples(client)
        axes = panels[row, column]
        axes.imshow(np.hstack(examples.x[:5, :, :, 0]), cmap="gray_r")
        axes.set_title(
            f"{kind}: client {client}, {examples.size}", fontsize="small"
        )
        axes.set_xlabel(" ".join(map(str, examples.y[:5])), fontsize="medium")
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# Five pictures of two clients of each federation, with the number of their training pictures above
# and their labels below.

# %% [markdown]
# ## Eight methods
#
# They differ in what is personal: nothing (FedAvg), a step (Per-FedAvg), a layer (FedPer, FedRep),
# a model that is pulled to the common one (Ditto) or mixed with it (APFL), the choice among two
# models (IFCA), or everything (Local).


# %%
def network():
    """Builds a small network of 8x8 pixels; its last layer is called "digits"."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
            tf.keras.layers.Dense(32, "relu", name="hidden"),
            tf.keras.layers.Dense(10, name="digits"),
        ]
    )


model = tff_pfl.from_keras(
    network,
    input_shape=(8, 8, 1),
    preprocess=lambda x: tf.cast(x, tf.float32) / 255,
)
local = tff_pfl.LocalTraining(
    tff.learning.optimizers.build_sgdm(0.1), epochs=3, batch_size=10
)

# %%
options = {
    "Local": ("local", {}),
    "FedAvg": ("fedavg", {}),
    "Per-FedAvg": ("per_fedavg", {"inner_learning_rate": 0.1}),
    "FedPer": ("fedper", {}),
    "FedRep": ("fedrep", {}),
    "Ditto": ("ditto", {"lambda_": 1.0}),
    "APFL": ("apfl", {}),
    "IFCA": ("ifca", {"num_clusters": 2}),
}
methods = {
    label: tff_pfl.make(name, model, local, num_clients=CLIENTS, **chosen)
    for label, (name, chosen) in options.items()
}


def trained(kind, labels):
    """Trains methods with three seeds on one of the federations."""
    return tff_pfl.compare(
        federations[kind],
        {label: methods[label] for label in labels},
        rounds=40,
        seeds=(0, 1, 2),
        evaluation=tff_pfl.Evaluation(every=10),
        folder=f"runs/which_method/{kind}",
    )


# %% [markdown]
# ## One federation, trained here
#
# Clients that call digits by other names, and three of the methods. `gain` is the mean difference
# of the same clients from Local, `p_value` belongs to a t test on the three seeds, `p_holm` is
# corrected for two methods, and `hurt` is the share of the clients that would be better off alone.

# %%
concept = trained("concepts", ["Local", "FedAvg", "IFCA"])
concept

# %%
concept.plot()

# %% [markdown]
# FedAvg has one model for two names of each digit: it is right half of the time, and every client
# would be better off alone. IFCA trains two models, and each client takes the one that suits its
# training pictures: within ten rounds the two groups have found each other, and they gain nine
# points in the end.

# %% [markdown]
# ## All of them
#
# The results of all 96 runs, which `EVERYTHING = True` trains again: gains over Local, in points of
# accuracy, with a star where p is below 0.05 after Holm's correction for the seven methods of a
# federation: of seven p values, one is soon small by chance.

# %%
RESULTS = """\
kind,method,accuracy,gain,p_value,hurt
labels,Local,0.8977,,,
labels,FedAvg,0.9419,0.0442,0.0092,0.1667
labels,Per-FedAvg,0.9463,0.0485,0.0075,0.2167
labels,FedPer,0.9267,0.0289,0.0125,0.0833
labels,FedRep,0.9219,0.0242,0.0033,0.0833
labels,Ditto,0.9533,0.0556,0.0192,0.1333
labels,APFL,0.9378,0.0401,0.0072,0.0333
labels,IFCA,0.9359,0.0382,0.061,0.1833
amounts,Local,0.7413,,,
amounts,FedAvg,0.969,0.2277,0.0064,0.0167
amounts,Per-FedAvg,0.9708,0.2295,0.0073,0.0167
amounts,FedPer,0.838,0.0967,0.0108,0.0
amounts,FedRep,0.8342,0.0929,0.0168,0.0167
amounts,Ditto,0.9645,0.2232,0.0033,0.0333
amounts,APFL,0.8818,0.1405,0.0086,0.0167
amounts,IFCA,0.9668,0.2255,0.0086,0.0167
features,Local,0.8545,,,
features,FedAvg,0.8258,-0.0288,0.0434,0.4833
features,Per-FedAvg,0.822,-0.0326,0.0373,0.5333
features,FedPer,0.8667,0.0121,0.1567,0.2333
features,FedRep,0.8682,0.0136,0.1399,0.2167
features,Ditto,0.8333,-0.0212,0.0198,0.45
features,APFL,0.8811,0.0265,0.0485,0.1167
features,IFCA,0.8712,0.0167,0.0315,0.3667
concepts,Local,0.8644,,,
concepts,FedAvg,0.4871,-0.3773,0.0003,1.0
concepts,Per-FedAvg,0.725,-0.1394,0.0098,0.8333
concepts,FedPer,0.8955,0.0311,0.0279,0.1667
concepts,FedRep,0.8962,0.0318,0.015,0.1667
concepts,Ditto,0.8659,0.0015,0.8675,0.3833
concepts,APFL,0.897,0.0326,0.0459,0.15
concepts,IFCA,0.953,0.0886,0.0002,0.05
"""

# %%
if EVERYTHING:
    tables = {kind: trained(kind, methods).table() for kind in federations}
    found = pd.concat(tables, names=["kind"]).reset_index()
    print(
        found[["kind", "method", "accuracy", "gain", "p_value", "hurt"]].to_csv(
            index=False
        )
    )
else:
    found = pd.read_csv(io.StringIO(RESULTS))

found["p_holm"] = found.groupby("kind")["p_value"].transform(analysis.holm)
wide = found.pivot(index="method", columns="kind").loc[list(methods)]
gains = 100 * wide["gain"][list(federations)].drop(index="Local")
stars = (wide["p_holm"][gains.columns].loc[gains.index] < 0.05).replace(
    {True: "*", False: ""}
)
texts = gains.map("{:+.1f}".format) + stars
axes = sns.heatmap(
    gains, annot=texts, fmt="", cmap="RdBu", vmin=-20, vmax=20, cbar=False
)
axes.set(
    xlabel="how clients differ",
    ylabel="",
    title="gain over Local, points of accuracy",
)
plt.show()

# %% [markdown]
# No method is best everywhere.
#
# * **Labels**: whatever is shared helps, and Ditto helps most.
# * **Amounts**: share the whole model, by FedAvg, Ditto or IFCA: it is worth 23 points. A client
#   with a dozen pictures cannot even train a layer of its own, as FedPer and FedRep let it.
# * **Features**: one model for four directions is worse than none in common, and what leans on it,
#   Ditto and Per-FedAvg, is worse too. APFL, IFCA, FedRep and FedPer are 1 to 3 points above Local,
#   but no difference has a star: with three seeds they cannot be told from chance.
# * **Concepts**: a common model does harm, unless there is one for each group (IFCA). FedPer and
#   FedRep, whose last layer is personal, and APFL are 3 points above Local, without a star.
# * If you do not know how your clients differ, compare several on validation data of yours. APFL
#   is above Local in all four here, but in two of them without a star, and elsewhere it may lose:
#   its `alpha` of 0.5 is a default, which was not tuned.

# %%
hurt = 100 * wide["hurt"][list(federations)].drop(index="Local")
axes = sns.heatmap(
    hurt, annot=True, fmt=".0f", cmap="Oranges", vmin=0, vmax=100, cbar=False
)
axes.set(
    xlabel="how clients differ",
    ylabel="",
    title="clients worse than under Local, per cent",
)
plt.show()

# %% [markdown]
# The mean hides who pays for it. With labels that differ, APFL hurts 3 % of the clients and Ditto
# 13 %, though Ditto's mean is higher; with features that differ, Ditto hurts nearly half.
#
# For numbers instead of classes, all eight methods work as well, by a network with one output and
# `from_keras(..., task="regression")`; the gain is then in `mse`. The [table of
# ratings](own_data_and_task.py) is such a federation, in which concepts differ: FedPer gains most,
# with an `mse` of 0.37 instead of Local's 0.95. FedRep has 0.51, Ditto 0.54, APFL 0.71, IFCA 1.11,
# and both FedAvg and Per-FedAvg have 1.65.
#
# How far to trust this: nothing was tuned, the data are small, and 3 seeds find large differences
# only. Put your own data into `federations`, and tune first:
# [`sweep.py`](../../programs/sweep.py) chooses settings on validation data.

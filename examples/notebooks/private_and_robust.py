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
# # Private and robust
#
# A federation may have to hide what its clients have, and to bear clients that send nonsense. How
# much accuracy does either cost, and is a client with a model of its own better off? The whole
# notebook takes a minute or two on two cores.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import dataclasses

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import attacks, privacy

# few rounds: a loop over clients starts sooner
tff_pfl.set_graph_context(vectorize="never")
sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# ## Noise for an epsilon
#
# From all that a server releases, the model after each round, nobody shall be able to tell whether
# a client took part. Differential privacy promises this up to a factor of `e^epsilon` in the odds,
# and a small probability `delta`: the smaller epsilon, the better. Each upload is shortened to a
# clipping norm, and the server, which is trusted with the uploads, adds noise to their sum. An
# `Accountant` computes how much noise an epsilon takes; what counts for the model is the noise in
# the mean, which is divided by the number of clients.

# %%
ROUNDS = 30


def accountant_of(num_clients):
    """Returns the accountant of a federation, with 40 % of the clients in a round."""
    return privacy.Accountant(
        num_clients,
        clients_per_round=2 * num_clients // 5,
        delta=num_clients**-1.1,  # a common choice; smaller is safer
        sampling="poisson",
    )


rows = []
for num_clients in (50, 500, 5_000):
    accountant = accountant_of(num_clients)
    for noise in (0.8, 1.2, 2.0, 3.0, 5.0):
        epsilon = accountant.epsilon(noise, ROUNDS)
        in_mean = noise / accountant.clients_per_round
        rows.append(
            {
                "clients": f"{num_clients:,}",
                "epsilon": epsilon,
                "noise": in_mean,
            }
        )
axes = sns.lineplot(
    pd.DataFrame(rows),
    x="epsilon",
    y="noise",
    hue="clients",
    style="clients",
    markers=True,
)
axes.set(
    xscale="log", yscale="log", ylabel="noise in the mean, in clipping norms"
)
axes.set(xticks=[1, 2, 4, 8, 16], xticklabels=[1, 2, 4, 8, 16])
plt.show()

# %% [markdown]
# A line is a federation of so many clients; lower is better. At the same epsilon, ten times as many
# clients have about a tenth of the noise. So privacy is cheap for a keyboard with many users, and
# expensive for a dozen hospitals.

# %% [markdown]
# ## Epsilon against accuracy
#
# A hundred clients have fourteen pictures each for training, of few classes. Each takes part in a
# round with a probability of 0.4, whatever the others do (Poisson sampling), which needs the least
# noise. Ditto's global model is the one that FedAvg trains, with the same uploads and the same
# noise: one run of Ditto shows both methods.
#
# An `Experiment` has all that the numbers of a run depend on. Private ones differ from the one
# without noise in the algorithm, and have the accountant, which counts their epsilon.


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
local = tff_pfl.LocalTraining(
    tff.learning.optimizers.build_sgdm(0.1), epochs=5, batch_size=10
)
ditto = tff_pfl.make("ditto", model, local, lambda_=1.0, weighting="uniform")


# %%
def federation(num_clients, min_examples):
    """Spreads the digits over clients; each has mostly a few classes."""
    return tff_pfl.federate(
        tff_pfl.load("digits"),
        num_clients=num_clients,
        partitioner="dirichlet",
        partition_args={"alpha": 0.3, "min_examples": min_examples},
        seed=0,
    )


def compared(experiments):
    """Trains experiments; returns a row for each model of each client, with its accuracy."""
    found = tff_pfl.compare(experiments, overwrite=True).runs.clients()
    found = found[found["quantity"] == "accuracy"]
    methods = {"global": "FedAvg", "personalized": "Ditto"}
    return found.assign(method=found["model"].map(methods))


# %%
many = federation(num_clients=100, min_examples=5)
accountant = accountant_of(many.num_clients)
last = tff_pfl.Evaluation(every=0)  # after the last round only
in_the_clear = tff_pfl.Experiment(
    ditto,
    many,
    rounds=ROUNDS,
    clients_per_round=accountant.clients_per_round,
    participation=tff_pfl.Participation(sampling="poisson"),
    evaluation=last,
)
experiments = {"none": in_the_clear}
for epsilon in (8, 2, 1):
    private = privacy.with_privacy(
        ditto,
        noise_multiplier=accountant.noise_multiplier(float(epsilon), ROUNDS),
        clients_per_round=accountant.clients_per_round,
        clipping="fixed",
        clip_norm=0.5,
        seed=epsilon,
    )
    experiments[f"{epsilon}"] = dataclasses.replace(
        in_the_clear, algorithm=private, accountant=accountant
    )
of_privacy = compared(experiments)

# %%
axes = sns.pointplot(
    of_privacy,
    x="label",
    y="value",
    hue="method",
    markers=["o", "s"],
    linestyles=["-", "--"],
    errorbar="se",
)
axes.set(xlabel="epsilon", ylabel="accuracy, mean over clients")
axes.legend(title=None)
plt.show()
of_privacy.pivot_table(index="label", columns="method", values="value").loc[
    ["none", "8", "2", "1"]
].round(3)

# %% [markdown]
# The bars are standard errors over clients.
#
# * Without privacy, **FedAvg** is best: fourteen pictures are few for each client's own model. It
#   then loses the most, because all of its model is noisy.
# * **Ditto** loses less: the noisy model only pulls at the client's own. With an epsilon of 2 or
#   less it is ahead.
#
# The promise covers the noisy mean of each round, and all that is made of it. The server itself
# sees each shortened upload, and a client's own model does not leave the client. Epsilon is that of
# a single run; all three private runs together tell more. [Privacy](../../docs/guides/privacy.md)
# says what is promised, and a table [who sees
# what](../../docs/guides/private_uploads.md#who-sees-what).

# %% [markdown]
# ## An attack and two aggregators
#
# Twenty clients train, all in each round; four of them send noise in place of their updates. Under
# the `mean`, each upload counts as much as any other. The `geometric_median` is the point with the
# least sum of distances to all uploads, which a few outliers hardly move. How do the sixteen honest
# clients fare?

# %%
few = federation(num_clients=20, min_examples=20)
attackers = [0, 5, 10, 15]
robust = tff_pfl.with_aggregator(
    ditto, tff_pfl.AGGREGATORS["geometric_median"]()
)
experiments = {}
for aggregator, algorithm in {
    "mean": ditto,
    "geometric median": robust,
}.items():
    noisy = attacks.noise(
        algorithm, client_ids=attackers, standard_deviation=1.0
    )
    for attack, attacked in {
        "nobody attacks": algorithm,
        "four attack": noisy,
    }.items():
        of_attack = tff_pfl.Experiment(
            attacked, few, rounds=20, evaluation=last
        )
        experiments[f"{aggregator}, {attack}"] = of_attack
of_attacks = compared(experiments)

# %%
honest = of_attacks[~of_attacks["client_id"].isin(attackers)]
axes = sns.boxplot(
    honest,
    x="value",
    y="label",
    hue="method",
    fill=False,
    showfliers=False,
    legend=False,
)
sns.stripplot(
    honest, x="value", y="label", hue="method", dodge=True, alpha=0.6, ax=axes
)
axes.set(xlabel="accuracy of an honest client's model", ylabel="")
axes.legend(title=None)
plt.show()
honest.pivot_table(
    index="label", columns="method", values="value", sort=False
).round(3)

# %% [markdown]
# A point is an honest client; further right is better.
#
# * Under the **mean**, the attack breaks FedAvg. Ditto's own models suffer, too, but far less.
# * Under the **geometric median**, both are about as good as if nobody attacked.
# * Without an attack, the geometric median costs FedAvg a little, and Ditto nothing.
#
# Other attacks need other cures: see [attacks](../../docs/results/attacks.md) for five attacks and
# six aggregators. Epsilon is that of a noisy mean, in which one upload counts little; under a
# robust aggregator it would not hold. A federation chooses one of the two.

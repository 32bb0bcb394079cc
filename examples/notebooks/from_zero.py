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
# # Federated learning from zero
#
# You know Keras and NumPy, and nothing of federated learning? Twenty people write digits. Nobody
# shows the pictures to anybody, and yet everybody wants a model that reads them. Here they train in
# three ways: each alone, all together, and something between. We meet the words of the field on the
# way, in bold. The whole notebook takes a minute on two cores.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import tensorflow as tf
from IPython.display import Image

from tff_pfl.data import plot_partition

sns.set_theme(style="ticks", palette="colorblind")

# %% [markdown]
# ## A federation and its clients
#
# A **client** has examples that never leave it: a phone, a hospital, or here a person with some
# pictures of digits. Clients that learn together are a **federation**. Their **server** receives
# and sends models, and never sees an example. We play all of them on one machine.
#
# `federate` deals out the 1,797 digits of scikit-learn to 20 clients, and not evenly: `dirichlet`
# draws for each digit who gets how many of it. The smaller `alpha`, the more clients differ.

# %%
federation = tff_pfl.federate(
    tff_pfl.load("digits"),
    num_clients=20,
    partitioner="dirichlet",
    partition_args={"alpha": 0.3, "min_examples": 20},
    fractions=(0.75, 0, 0.25),
    seed=0,
)
figure, panels = plt.subplots(3, figsize=(7, 2))
for client, axes in zip((2, 5, 7), panels, strict=True):
    axes.imshow(
        np.hstack(federation.examples(client).x[:14, :, :, 0]), cmap="gray_r"
    )
    axes.set(xticks=[], yticks=[])
    axes.set_ylabel(client, rotation=0, labelpad=12, va="center")
plt.show()

# %% [markdown]
# The first pictures of clients 2, 5 and 7. And this is how many of each digit every client has:

# %%
plot_partition(federation, "clients.png")
Image("clients.png", width=700)

# %% [markdown]
# A column is a client, a row a digit; the larger the circle, the more pictures. Client 2 has mostly
# eights, client 7 little but sevens, and nobody has all ten digits.
#
# These are the training pictures, three quarters of each client's. The others are for its **local
# test**: a model is tested on the pictures of the client that will use it. Client 7 needs a model
# that knows sevens, and does not care much about ones.

# %% [markdown]
# ## A round, by hand
#
# How can a server train a model on pictures that it never sees? By **federated averaging**, FedAvg
# for short. It goes in **rounds**:
#
# 1. The server draws some clients, the **cohort** of the round, and sends them its model.
# 2. Each of them trains the model on its own pictures, for a few **epochs**: in an epoch it sees
#    each picture once, as in Keras.
# 3. They send back the trained weights, and the server averages them. A client with more pictures
#    counts more.
#
# In Keras and NumPy:


# %%
def network():
    """Builds a small network, of a body and a head."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
            tf.keras.layers.Dense(64, "relu", name="body"),
            tf.keras.layers.Dense(10, name="head"),
        ]
    )


def next_round(weights, cohort):
    """Trains a model at each client of a cohort; returns the average of the trained models."""
    trained = []
    for client in cohort:
        examples = federation.examples(client)
        keras_model.set_weights(weights)
        keras_model.fit(
            examples.x / 255, examples.y, batch_size=10, epochs=5, verbose=0
        )
        trained.append(keras_model.get_weights())
    sizes = federation.sizes()[cohort]
    return [
        np.average(layer, axis=0, weights=sizes)
        for layer in zip(*trained, strict=True)
    ]


# %%
tf.keras.utils.set_random_seed(0)
keras_model = network()
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
keras_model.compile(tf.keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
others = [federation.examples(client, "test") for client in range(12, 20)]
x = np.concatenate([examples.x for examples in others]) / 255
y = np.concatenate([examples.y for examples in others])
weights = keras_model.get_weights()
for cohort in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]):
    weights = next_round(weights, cohort)
    keras_model.set_weights(weights)
    print(
        f"cohort {cohort}: {keras_model.evaluate(x, y, verbose=0)[1]:.0%} right"
    )

# %% [markdown]
# The numbers are of the test pictures of clients 12 to 19, who were in no cohort: the model learns
# their digits from others. There is one model for all, the **global model**.

# %% [markdown]
# ## Three ways to train
#
# `compare` does such rounds, and draws the cohorts, evaluates and keeps results. Here 10 of the 20
# clients are in each cohort, for 30 rounds. The three ways are:
#
# * **Local**: each client trains alone, and nothing is sent. Its model is its own, or **personal**.
# * **FedAvg**: all train the global model.
# * **Ditto**: both. Each client trains a personal model, which is pulled towards the global one:
#   the larger `lambda_`, the harder. This is **personalization**: a model for each client that has
#   learned from all.

# %%
model = tff_pfl.from_keras(
    network,
    input_shape=(8, 8, 1),
    preprocess=lambda x: tf.cast(x, tf.float32) / 255,
)
local = tff_pfl.LocalTraining(
    tff_pfl.OPTIMIZERS["sgd"](0.1), epochs=5, batch_size=10
)
methods = {
    "Local": tff_pfl.make("local", model, local),
    "FedAvg": tff_pfl.make("fedavg", model, local),
    "Ditto": tff_pfl.make("ditto", model, local, lambda_=1.0),
}
compared = tff_pfl.compare(
    federation,
    methods,
    rounds=30,
    clients_per_round=10,
    folder="runs/from_zero",
)
compared.plot()

# %% [markdown]
# The accuracy in the local test, as a mean over the clients. Alone, they soon learn what their few
# pictures have to teach. FedAvg starts slowly, because its model has to suit everybody, and ends
# two points higher. Ditto ends five points higher.

# %% [markdown]
# ## Gains and losses of each client
#
# A mean hides the clients. Here is each of them:

# %%
accuracies = compared.clients().loc[0].sort_values("Local")
gains = 100 * accuracies[["FedAvg", "Ditto"]].sub(accuracies["Local"], axis=0)
how = {
    "subplots": True,
    "sharey": True,
    "legend": False,
    "color": ["tab:orange", "tab:green"],
}
for axes in gains.plot.bar(
    figsize=(7, 4.2), width=0.8, ylabel="gain, points", **how
):
    axes.axhline(0, color="black", linewidth=0.8)
plt.xlabel("client, from the worst to the best alone")
plt.tight_layout()
plt.show()

# %% [markdown]
# A bar is how many more of 100 test pictures a client's model reads than the one trained alone.
#
# * **FedAvg** helps those who are bad alone, as they have few pictures: client 5 gains 33 points,
#   which are two of its six test pictures. But client 2 loses 38 points. It has mostly eights, and
#   reads them worse with everybody's model.
# * **Ditto** keeps the gains, and client 2 loses nothing: its own model has learned its own eights.
#   Nobody loses more than two pictures.
#
# Those at the right read all of their test pictures alone: they cannot gain.
#
# Here are the test pictures of client 2 to which the two models of Ditto give different answers.
# Ditto's global model is trained just as that of FedAvg.

# %%
predicted = compared.run("Ditto").predictions().query("client_id == 2")
answers = {
    name: np.stack(predicted[name]).argmax(axis=1)
    for name in ("global", "personalized")
}
differ = np.flatnonzero(answers["global"] != answers["personalized"])
figure, panels = plt.subplots(
    1, len(differ), figsize=(1.2 * len(differ), 1.8), squeeze=False
)
for row, axes in zip(differ, panels[0], strict=True):
    axes.imshow(
        federation.x[predicted["example"].iloc[row], :, :, 0], cmap="gray_r"
    )
    both = (
        f"global: {answers['global'][row]}\nown: {answers['personalized'][row]}"
    )
    axes.set(
        title=both,
        xlabel=f"is a {predicted['label'].iloc[row]}",
        xticks=[],
        yticks=[],
    )
plt.tight_layout()
plt.show()

# %% [markdown]
# All of them are eights. The global model takes them for ones or fives, as other clients write
# these. Client 2's own model is right: it has learned from the others, and still knows that here
# nearly everything is an eight.
#
# ## Where to go from here
#
# Ditto is one way to be personal. Another one cuts the network in two: the first layers, the
# **body**, are shared, because strokes are strokes for everybody; the last layer, the **head**,
# stays with each client and names what the body sees. That is FedPer, and in `methods` it is a
# line: `tff_pfl.make("fedper", model, local, personal_layers=["head"])`.
#
# * [Personalization in ten minutes](personalization_in_ten_minutes.py): four methods in a table,
#   and how sure their gains are.
# * [Which method for my federation?](which_method.py): clients that differ in other ways.
# * [Your own data and task](own_data_and_task.py), and [text](text.py).

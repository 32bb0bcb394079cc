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
# # Text, character by character
#
# A phone guesses the word that its owner is typing, and nobody sends messages away to train that:
# it was the first task of federated learning. Messages of people are private. So this notebook
# takes real text that every machine with Python has, the docstrings of its standard library. A
# client is a module, such as `email` or `random`, with words of its own. The whole notebook takes
# a minute or two on two cores.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import ast
import collections
import pathlib
import re
import sysconfig

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# ## Eighteen modules and their words
#
# `ast` reads a module without importing it. A text is a docstring, in lower case, with a 0 for each
# digit and a blank for each space or line break. Tests of the library are left out, because not
# every Python has them. Docstrings change with the last number of Python's version, too: the
# numbers in this text are of Python 3.11.7, and yours will differ a little.

# %%
MODULES = """
argparse asyncio configparser datetime difflib email http ipaddress json
logging random smtplib statistics tarfile threading typing unittest urllib
""".split()
LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def texts_of(module):
    """Returns the docstrings of a module or a package; what it repeats, once."""
    files = [
        LIBRARY / f"{module}.py",
        *sorted((LIBRARY / module).glob("**/*.py")),
    ]
    files = [
        file for file in files if "test" not in file.relative_to(LIBRARY).parts
    ]
    trees = [ast.parse(file.read_bytes()) for file in files if file.exists()]
    nodes = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED)
    ]
    docstrings = dict.fromkeys(filter(None, map(ast.get_docstring, nodes)))
    return [
        re.sub(r"\d", "0", re.sub(r"\s+", " ", text.lower()))
        for text in docstrings
    ]


texts = {module: texts_of(module) for module in MODULES}

# %%
words = {
    module: re.findall("[a-z]{4,}", " ".join(texts[module]))
    for module in MODULES
}
counts = pd.DataFrame(
    {module: collections.Counter(words[module]) for module in MODULES}
).fillna(0)
shares = 100 * counts / counts.sum()
typical = [
    shares.sub(shares.mean(axis=1), axis=0)[module].idxmax()
    for module in MODULES
]
figure, axes = plt.subplots(figsize=(8, 5))
sns.heatmap(
    shares.loc[typical],
    cmap="Blues",
    vmax=4,
    ax=axes,
    cbar_kws={"label": "% of words"},
)
plt.show()

# %% [markdown]
# A column is a module, a row the word that it has far more often than others. Each field is the
# share of a row's word among the words of a column's module. The dark diagonal says that clients
# differ: one model for all of them has to hedge.

# %% [markdown]
# ## Ten characters, and the one that follows
#
# A model gets ten characters and predicts the next one. So this is a classification, and the
# classes are the characters. A quarter of a module's docstrings are for tests. To save time, a
# module trains on its first 12,000 characters at most.

# %%
CHARACTERS = " abcdefghijklmnopqrstuvwxyz.,:;()'\"_-=<>[]`0"
LENGTH = 10


def ids_of(text):
    """Returns the ids of the known characters of a text."""
    return [
        CHARACTERS.index(character)
        for character in text
        if character in CHARACTERS
    ]


def examples_of(texts, number):
    """Returns all windows of LENGTH characters, `[n, LENGTH]`, and their next characters, `[n]`."""
    rows = [
        np.array([0] * LENGTH + ids_of(text) + [0], np.int32) for text in texts
    ]
    windows = [
        np.lib.stride_tricks.sliding_window_view(row, LENGTH + 1)
        for row in rows
    ]
    windows = np.concatenate(windows)[:number]
    return windows[:, :-1], windows[:, -1]


clients = {}
for module in MODULES:
    order = np.random.default_rng(1).permutation(texts[module])
    cut = 3 * len(order) // 4
    clients[module] = (
        *examples_of(order[:cut], 12_000),
        *examples_of(order[cut:], 4_000),
    )
modules = tff_pfl.FederatedDataset.from_client_arrays(
    clients, num_classes=len(CHARACTERS)
)
modules

# %% [markdown]
# ## Alone, together, or both
#
# The network has an embedding for each character, and two layers upon all ten. **Local** is a model
# for each module alone, **FedAvg** one for all, and **Ditto** trains, beside the global model, one
# for each module that is pulled towards it.
#
# An LSTM instead, which predicts each character of a line, is in
# [your own data and task](own_data_and_task.py).


# %%
def network():
    """Builds a small network."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(
                len(CHARACTERS), 12, input_length=LENGTH, name="characters"
            ),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(96, "relu", name="hidden"),
            tf.keras.layers.Dense(len(CHARACTERS), name="next"),
        ]
    )


# %%
model = tff_pfl.from_keras(network, input_shape=(LENGTH,), input_dtype=tf.int32)
sgd = tff.learning.optimizers.build_sgdm(0.3)
local = tff_pfl.LocalTraining(sgd, epochs=1, batch_size=50)
methods = {
    "Local": tff_pfl.make("local", model, local),
    "FedAvg": tff_pfl.make("fedavg", model, local),
    "Ditto": tff_pfl.make("ditto", model, local, lambda_=0.1),
}
compared = tff_pfl.compare(
    modules,
    methods,
    rounds=40,
    clients_per_round=6,
    evaluation=tff_pfl.Evaluation(every=10),
    folder="runs/text",
)
compared.plot()

# %% [markdown]
# The share of characters that are predicted right, in a module's own test docstrings, as a mean
# over modules. Alone, a module has too little text to learn English from: FedAvg is ahead of Local
# by one or two points. Ditto is ahead of FedAvg by two more. And for each module:

# %%
accuracies = compared.clients().loc[0].sort_values("FedAvg")
axes = accuracies.plot(
    style=["s", "o", "^"], rot=90, figsize=(7, 3.8), ylabel="accuracy"
)
axes.set(xlabel="", xticks=range(len(accuracies)), xticklabels=accuracies.index)
axes.legend(title=None)
plt.show()
for other in ("Local", "FedAvg"):
    number = (accuracies["Ditto"] > accuracies[other]).sum()
    print(
        f"Ditto is better than {other} for {number} of {len(accuracies)} modules."
    )

# %% [markdown]
# A column is a module; higher is better. For most modules the model that is pulled towards the
# common one is the best. A few, such as `json` and `ipaddress`, are better off alone: their
# docstrings repeat each other, so that what helps is to know them by heart.
#
# The settings (rate, rounds, sizes, `lambda_`) come from a few trials on another random cut of the
# same docstrings, with the same settings for all methods. A smaller `lambda_` pulls less, and 0 is
# Local: [sweeps](../../docs/guides/sweeps.md#tuning) say how to choose it on validation examples.

# %% [markdown]
# ## Words that the models write
#
# A beginning, and how the models go on until the end of the word. `restored` opens the last
# checkpoint of a run, with the models of the server and of the clients.


# %%
def word(weights, start):
    """Returns the word that begins with `start`, as a model continues it."""
    ids = [0] * LENGTH + ids_of(start)
    while len(ids) < LENGTH + len(start) + 12:
        logits = model.apply(
            weights, tf.constant([ids[-LENGTH:]], tf.int32), training=False
        )
        ids.append(int(np.argmax(logits)))
        if ids[-1] == 0:
            break
    return "".join(CHARACTERS[i] for i in ids[LENGTH:]).split()[-1]


starts = ["return the m", "return the n", "of the l", "the a"]
shown = ["argparse", "ipaddress", "logging", "statistics", "tarfile"]
with compared.run("Ditto").restored() as found:
    process = compared.run("Ditto").experiment.process
    weights = {"global": process.global_weights(found.server_state)}
    own = process.personalize(
        found.server_state, found.source.select_clients(shown)
    )
    weights |= dict(zip(shown, own, strict=True))
pd.DataFrame(
    {
        start: [word(of_model, start) for of_model in weights.values()]
        for start in starts
    },
    index=list(weights),
)

# %% [markdown]
# A row is a model. With the same beginnings, `statistics` thinks of the median, `logging` of a
# logger, and `ipaddress` of networks and addresses. The global model cannot know who is writing.
# Not all of it is English: a model of ten characters that has trained for half a minute is no
# language model.
#
# For texts of your own, replace `texts`. For words instead of characters, or for sequences of
# several lengths, see the task `sequence` in the [guide to tasks](../../docs/guides/tasks.md).

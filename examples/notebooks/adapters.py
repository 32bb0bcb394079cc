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
# # A pre-trained transformer, and adapters for each client
#
# Today's networks are trained once, on text that anybody may read, and then adapted. Here a small
# transformer learns to predict the next character of docstrings of Python's standard library.
# Then twelve modules that it has not seen are the clients of a federation. Each adapts the
# network to its own words by LoRA: the network is frozen, and two small matrices beside each of
# its large ones are trained. The notebook takes two minutes on two cores.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import ast
import pathlib
import re
import sysconfig

import numpy as np
import tensorflow as tf

from tff_pfl import models

# %% [markdown]
# ## Text that anybody may read, and text of the clients
#
# A text is a docstring in lower case, with a 0 for each digit. It is cut into pieces of 32
# characters; the label of each character is the next one, and 0 is padding.

# %%
CLIENTS = """
argparse asyncio configparser email http json
logging statistics tarfile threading unittest urllib
""".split()
LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CHARACTERS = " abcdefghijklmnopqrstuvwxyz.,:;()'\"_-=<>[]`0"
LENGTH = 32


def texts_of(files):
    """Returns the docstrings in files; what they repeat, once."""
    trees = [ast.parse(file.read_bytes()) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    nodes = [node for node in nodes if isinstance(node, DOCUMENTED)]
    texts = dict.fromkeys(filter(None, map(ast.get_docstring, nodes)))
    return [
        re.sub(r"\d", "0", " ".join(text.lower().split())) for text in texts
    ]


def pieces_of(texts):
    """Returns ids of characters and of those that follow, `[n, LENGTH]` each."""
    pieces = []
    for text in texts:
        ids = [CHARACTERS.index(it) + 1 for it in text if it in CHARACTERS]
        for start in range(0, len(ids) - 1, LENGTH):
            piece = ids[start : start + LENGTH + 1]
            pieces.append(piece + [0] * (LENGTH + 1 - len(piece)))
    pieces = np.array(pieces, np.int32)
    return pieces[:, :-1], pieces[:, 1:]


public = sorted(LIBRARY.glob("*.py"))
public = [file for file in public if file.stem not in CLIENTS]
x, y = (it[:12_000] for it in pieces_of(texts_of(public)))

clients = {}
for module in CLIENTS:
    files = [LIBRARY / f"{module}.py", *(LIBRARY / module).glob("*.py")]
    texts = texts_of(sorted(file for file in files if file.exists()))
    order = np.random.default_rng(1).permutation(texts)
    cut = 3 * len(order) // 4
    train, test = pieces_of(order[:cut]), pieces_of(order[cut:])
    clients[module] = (*(it[:60] for it in train), *(it[:100] for it in test))
print(f"{len(public)} files to read, of {len(x)} pieces")

# %% [markdown]
# ## Pre-training
#
# This is plain Keras. In practice, the file comes from somebody with more computers.

# %%
SHAPE = {"image_shape": (LENGTH,), "num_classes": len(CHARACTERS) + 1}
NETWORK = {
    "vocabulary": len(CHARACTERS) + 1,
    "width": 64,
    "depth": 2,
    "heads": 4,
    "causal": True,
    "per_token": True,
}
tf.keras.utils.set_random_seed(0)
network = models.MODELS["transformer"](**SHAPE, **NETWORK)
loss = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, ignore_class=0
)
network.compile(tf.keras.optimizers.Adam(0.003), loss)
network.fit(x, y, batch_size=64, epochs=3, verbose=0)
network.save("network.keras")
network.count_params()

# %% [markdown]
# ## Adapters
#
# `start` reads the file, and `adapters` freezes the network: kernels of attention and of dense
# layers get two matrices of rank 4 each, which are all that a client trains, sends and keeps.

# %%
dataset = tff_pfl.FederatedDataset.from_client_arrays(clients, num_classes=None)
sequence = tff_pfl.TASKS["sequence"]()
base = models.build(
    "transformer", **SHAPE, **NETWORK, task=sequence, mean=None
).starting_from("network.keras")
model = models.lora(base, ["*_attention/*", "*_dense*"], rank=4)
print(f"{model.num_weights} weights of adapters, {base.num_weights} frozen")

correct = [
    np.mean((network.predict(x, verbose=0).argmax(-1) == y)[y > 0])
    for _, _, x, y in clients.values()
]
print(f"without adapters, {np.mean(correct):.3f} of a client's characters")

# %% [markdown]
# ## Shared adapters, and own ones
#
# `down @ up` is added to each kernel. **FedAvg** shares both, **FedSA-LoRA** shares `down` and
# leaves `up` to each client, **Local** shares nothing, and **Ditto** keeps adapters near shared
# ones.

# %%
sgd = tff_pfl.OPTIMIZERS["sgd"](0.3)
local = tff_pfl.LocalTraining(sgd, epochs=1, batch_size=20)
methods = {
    "Local": tff_pfl.make("local", model, local),
    "FedAvg": tff_pfl.make("fedavg", model, local),
    "FedSA-LoRA": tff_pfl.make(
        "fedper", model, local, personal_layers=["*_up"]
    ),
    "Ditto": tff_pfl.make("ditto", model, local, lambda_=0.1),
}
compared = tff_pfl.compare(
    dataset, methods, rounds=10, evaluation=tff_pfl.Evaluation(every=5)
)
table = compared.table()
table[["accuracy", "hurt", "helped", "bytes_up"]]

# %% [markdown]
# `accuracy` is the share of characters that a client's own model predicts right, as a mean over
# modules. Sixty pieces of text are little. Even so, adapters gain a point or two over the network
# without them, and nothing is forgotten, since the network itself stays as it was. Between the
# methods there is hardly a difference here; Ditto is better than Local for two of three modules.
# FedSA-LoRA sends half of the adapters. The accuracy by round, and of each module beside Local:

# %%
compared.plot()

# %%
compared.plot_clients()

# %% [markdown]
# ## One network again
#
# `base_weights` adds a client's adapters to the network, which is then plain Keras.

# %%
run = compared.run("Ditto")
run.export("exported", ["http"], overwrite=True)
exported = tf.saved_model.load("exported/client_http")
models.assign(network, model.base_weights(exported.weights))
_, _, x, y = clients["http"]
adapted = np.mean((network.predict(x, verbose=0).argmax(-1) == y)[y > 0])
before = correct[CLIENTS.index("http")]
print(f"{before:.3f} before, {adapted:.3f} with the adapters of http")

# %% [markdown]
# [Pre-trained networks](../../docs/guides/pretrained.md) has other files to start from, other
# layers, and the same by a config.

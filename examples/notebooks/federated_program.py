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
# # From a notebook to a federated program
#
# A loop over rounds in a notebook ends with the notebook. A federated program keeps the same logic
# apart from the system around it: where clients come from, where numbers and states go, and what
# computes. It can be killed at any moment and resumes with the same numbers, and it runs on a GPU
# as it stands. The whole notebook takes 80 seconds on two cores.

# %%
import tff_pfl  # before TensorFlow

tff_pfl.prepare_process()  # TensorFlow does not report each file that it writes

import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import deployment, evaluation, runtime

sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# Twenty-four people have handwritten digits, each mostly of a few classes. Ditto trains a global
# model, and for each client a model of its own. All of this is in one function, because the program
# will need it, too.


# %%
def digits():
    """Returns the data of the federation, the model, and the process that trains it."""
    dataset = tff_pfl.federate(
        tff_pfl.load("digits"),
        num_clients=24,
        partitioner="dirichlet",
        partition_args={"alpha": 0.3, "min_examples": 20},
        fractions=(0.4, 0.0, 0.6),
        seed=0,
    )

    def network():
        layers = [tf.keras.layers.Flatten(input_shape=(8, 8, 1))]
        layers += [tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(10)]
        return tf.keras.Sequential(layers)

    model = tff_pfl.from_keras(
        network,
        input_shape=(8, 8, 1),
        preprocess=lambda x: tf.cast(x, tf.float32) / 255,
    )
    sgd = tff.learning.optimizers.build_sgdm(0.05, momentum=0.5)
    local = tff_pfl.LocalTraining(sgd, epochs=5, batch_size=10)
    ditto = tff_pfl.make("ditto", model, local, lambda_=1.0)
    return dataset, model, tff_pfl.compose(ditto, dataset.examples_type)


# %% [markdown]
# ## The logic
#
# The logic is a loop over rounds. It knows the interfaces of `tff.program` alone:
#
# * a **data source**, whose iterator selects the clients of each round. One step is not in
#   `tff.program`: the new states of clients go back to the iterator, by `update`;
# * **release managers**, which receive the metrics of each round;
# * a **program state manager**, which saves all that the next round needs: the server's state, and
#   the iterator, whose bytes have the position and the states of the clients.
#
# Metrics are released before the state is saved. If the program is killed in between, it repeats
# the round, and releases the same numbers under the same key.


# %%
async def train(
    process, source, release_manager, state_manager, rounds, cohort_size
):
    """Trains until `rounds` are done, including those before a failure; returns the last state."""
    state = await tff.program.materialize_value(process.initialize())
    beginning = (state, source.iterator())
    saved, rounds_done = await state_manager.load_latest(beginning)
    state, iterator = saved or beginning
    for round_num in range(rounds_done + 1, rounds + 1):
        output = process.next(state, iterator.select(cohort_size))
        state = await tff.program.materialize_value(output.state)
        iterator.update(await tff.program.materialize_value(output.clients))
        await release_manager.release(output.metrics, round_num)
        await state_manager.save((state, iterator), round_num)
    return state


# %% [markdown]
# ## The system around it
#
# A release manager is a class with one method. This one notes when a round was released, and by
# which process:


# %%
def clock_manager(path):
    """Makes a release manager that appends the process, the round and the time to a file."""

    class Clock(tff.program.ReleaseManager):
        async def release(self, value, key):
            with open(path, "a") as file:
                file.write(f"{os.getpid()},{key},{time.time()}\n")

    return Clock()


# %% [markdown]
# The other parts come from TFF and from this library. `RunDirectory` lets one process at a time
# write to a folder, and removes files that a killed process left unfinished.


# %%
async def run(output_dir, rounds):
    """Makes the parts of the program, and trains in `output_dir`; the same call resumes."""
    dataset, _, process = digits()
    store = tff_pfl.ClientStateStore(
        process.initialize_clients, process.client_state_type
    )
    source = tff_pfl.CohortDataSource(
        dataset, store, process.client_type, seed=0
    )
    files = ("metrics.csv", "clock.csv", "states")
    with tff_pfl.RunDirectory(
        output_dir, resume=True, files=files
    ) as directory:
        metrics = tff.program.CSVFileReleaseManager(
            directory.file("metrics.csv"), tff.program.CSVSaveMode.WRITE
        )
        clock = clock_manager(directory.file("clock.csv"))
        state = await train(
            process,
            source,
            tff.program.GroupingReleaseManager([metrics, clock]),
            tff.program.FileProgramStateManager(
                directory.file("states"), keep_first=False
            ),
            rounds,
            cohort_size=8,
        )
    return source, state


# %% [markdown]
# In the notebook the program is a call. A `ProgramContext` executes computations as
# `tff.program` wants it: their results are references, which `materialize_value` waits for.

# %%
# a former run of this notebook
shutil.rmtree("runs/federated_program", ignore_errors=True)
context = runtime.ProgramContext(runtime.create_async_graph_context())
tff.framework.set_default_context(context)
await run("runs/federated_program/notebook", rounds=30)
uninterrupted = pd.read_csv(
    "runs/federated_program/notebook/metrics.csv", index_col="key"
)
uninterrupted[["train/loss", "train/personal_loss", "train/num_examples"]].tail(
    3
).round(3)

# %% [markdown]
# ## A program that is killed
#
# A program that survives the notebook is a file. It has the functions above, unchanged, and around
# them imports, flags, and the context that the flags of `async_context_from_flags` choose.

# %%
beginning = '''"""Trains Ditto on handwritten digits; the same command resumes."""

import asyncio
import os
import time

import tff_pfl

tff_pfl.prepare_process()

import tensorflow as tf
import tensorflow_federated as tff
from absl import app, flags
from tff_pfl import runtime
from tff_pfl.runtime.flags import async_context_from_flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The folder of the run.", required=True)
ROUNDS = flags.DEFINE_integer("rounds", 30, "Rounds, including those done.")
'''
end = """
def main(argv):
    tff.framework.set_default_context(runtime.ProgramContext(async_context_from_flags()))
    asyncio.run(run(OUTPUT_DIR.value, ROUNDS.value))


app.run(main)
"""
functions = map(inspect.getsource, [digits, train, clock_manager, run])
program = "\n\n".join([beginning, *functions, end])
pathlib.Path("program.py").write_text(program)
print(f"program.py has {len(program.splitlines())} lines.")

# %% [markdown]
# We start it, and kill it as soon as it has released the fifth round, by SIGKILL, which no process
# can catch. The same command resumes. We kill it again after round 14; the third process finishes.

# %%
folder = pathlib.Path("runs/federated_program/killed")


def start():
    """Starts the program, whose messages go to a file."""
    with open("program.log", "a") as log:
        command = [sys.executable, "program.py", f"--output_dir={folder}"]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def releases():
    """Returns the process, the round and the time of each release so far."""
    file = folder / "clock.csv"
    names = ["process", "round", "time"]
    return (
        pd.read_csv(file, names=names)
        if file.exists()
        else pd.DataFrame(columns=names)
    )


# %%
started, ended = [], []
for rounds in (5, 14, None):
    started.append(time.time())
    process = start()
    while (
        rounds
        and process.poll() is None
        and not (releases()["round"] >= rounds).any()
    ):
        time.sleep(0.05)
    if rounds:
        process.kill()
    print(f"process {len(started)} ended with code {process.wait()}")
    ended.append(time.time())

metrics = (folder / "metrics.csv").read_bytes()
is_equal = (
    metrics
    == pathlib.Path("runs/federated_program/notebook/metrics.csv").read_bytes()
)
print(
    f"metrics.csv has the same {len(metrics)} bytes as in the notebook: {is_equal}"
)

# %%
clock = releases()
clock["process"] = pd.factorize(clock["process"])[0] + 1
clock["seconds"] = clock["time"] - started[0]
colors = sns.color_palette("colorblind", 3)
how = {"hue": "process", "style": "process", "palette": colors, "s": 50}
axes = sns.scatterplot(clock, x="seconds", y="round", **how)
axes.legend(title="released by process", loc="lower right")
for first, last, color in zip(started, ended, colors, strict=True):
    axes.axvspan(first - started[0], last - started[0], color=color, alpha=0.15)
axes.set(xlabel="seconds since the first start", ylabel="round")
plt.show()
twice = clock.loc[clock["round"].duplicated(), "round"].tolist()
print(f"released by two processes: rounds {twice}")

# %% [markdown]
# A point is a round that was released; a band is the life of a process.
#
# * Each process needs some seconds before its first round: it imports TensorFlow, makes the
#   federation and traces the graph of a round. Then a round takes a fraction of a second.
# * A process continues where the last state was saved. A round that was released, but not yet saved
#   when the process was killed, is **done again**. The line below the picture lists these rounds.
#
# The numbers show no trace of it: `metrics.csv` is, byte for byte, that of the notebook, which
# nothing interrupted.

# %%
last = clock.drop_duplicates("round", keep="last").set_index("round")["process"]
of_program = pd.read_csv(folder / "metrics.csv", index_col="key").join(last)
axes = sns.lineplot(
    uninterrupted["train/personal_loss"], color="0.6", label="notebook"
)
sns.scatterplot(of_program, x="key", y="train/personal_loss", ax=axes, **how)
axes.set(xlabel="round", ylabel="training loss of clients' own models")
axes.legend(title=None)
plt.show()

# %% [markdown]
# The line is the notebook, the points are the program, coloured by the process that released them
# last. All points are on the line, also the first ones of a process: it has resumed the states of
# the clients and the order of the cohorts. The loss jumps, because each round has another cohort.

# %% [markdown]
# ## Back to the notebook
#
# The folder has all that the program has trained. `run` resumes it: no round is left to do, so that
# it returns the last state, and the source has the states of the clients.

# %%
source, state = await run(folder, rounds=30)
dataset, _, process = digits()
tff_pfl.set_graph_context()
evaluator = evaluation.Evaluator(process, dataset, evaluation.Evaluation())
found = evaluator.on_own_examples(state, source)
accuracies = pd.DataFrame(
    {
        name.model: values
        for name, values in found.values.items()
        if name.quantity == "accuracy"
    }
)
axes = sns.scatterplot(
    accuracies, x="global", y="personalized", s=60, alpha=0.6
)
axes.axline((1, 1), slope=1, color="0.6", linestyle="--")
axes.set(
    xlabel="accuracy of the global model",
    ylabel="accuracy of the client's own model",
)
axes.set_aspect("equal")
plt.show()
better = (accuracies["personalized"] > accuracies["global"]).sum()
worse = (accuracies["personalized"] < accuracies["global"]).sum()
print(f"own model better for {better} clients, worse for {worse}")
accuracies.mean().round(3)

# %% [markdown]
# A point is a client, on its test pictures. Above the dashed line its own model is better than the
# global model, below it worse. Most clients gain by a model of their own, a few lose, and the mean
# of the clients is higher; the numbers are below the picture.
#
# ## On devices
#
# So far one process has had the examples and the states of all clients. TFF has **forms** for
# systems that keep them apart: what the server prepares, what a client computes, and how the server
# aggregates. `deployment.forms` compiles each exchange of a round; Ditto has one, `train`. TFF
# makes a computation of a form, here for round 31, of four clients:

# %%
cohort = source.select_clients(range(4))
[train_form] = deployment.forms(process)
mapreduce = tff.backends.mapreduce
next_server = mapreduce.get_computation_for_map_reduce_form(
    train_form.map_reduce
)
kept_by_clients = mapreduce.get_computation_for_broadcast_form(
    train_form.on_clients
)
server_after, metrics = next_server(state, cohort)
clients_after = kept_by_clients(state, cohort)
pd.Series(metrics["train"])[["loss", "personal_loss", "num_clients"]].round(3)

# %% [markdown]
# A device has TensorFlow and neither TFF nor this library. So both sides are exported as
# SavedModels, whose signatures take and return tensors by name. Here is the same round by hand. The
# server makes a message, each device works and answers, and the server adds the uploads and updates
# its state. Each device keeps its `state` to itself.

# %%
sides = pathlib.Path("runs/federated_program")
deployment.export_server(process, sides / "server")
deployment.export_client(process, sides / "device")
server, device = (
    tf.saved_model.load(str(sides / s)).signatures for s in ("server", "device")
)


def call(signature, *given):
    """Calls a signature with those of the tensors that it takes."""
    known = {
        name: tensor for tensors in given for name, tensor in tensors.items()
    }
    _, takes = signature.structured_input_signature
    return signature(**{name: tf.constant(known[name]) for name in takes})


def difference(label, expected, found):
    """Returns the largest difference between a structure and tensors with its names."""
    tensors = deployment.named_tensors(label, expected).items()
    return max(
        np.max(np.abs(np.asarray(found[name]) - tensor))
        for name, tensor in tensors
    )


# %%
server_state = deployment.named_tensors("server", state)
message = call(server["message_train"], server_state)
total, differences = call(server["zero_train"]), {}
for client, after in zip(cohort, clients_after, strict=True):
    inputs = {"client_id": client.client_id} | deployment.named_tensors(
        "data", client.data
    )
    own_state = deployment.named_tensors("state", client.state)
    answer = call(device["work_train"], inputs, own_state, message)
    # the upload and the id
    total = call(server["accumulate_train"], total, answer, inputs)
    differences[f"device {client.client_id}"] = difference(
        "state", after["state"], answer
    )
updated = call(server["update_train"], server_state, total)
differences["server"] = difference("server", server_after, updated)
print("The largest differences from TFF's form:")
pd.Series(differences)

# %% [markdown]
# The numbers agree up to rounding. The [guide to devices](../../docs/guides/devices.md) says when
# they agree bit for bit, and has a coordinator and devices that send these messages.
#
# ## On a GPU
#
# The logic does not know what computes; the context does. The flags that `program.py` has from
# `async_context_from_flags` choose one, with the numbers above up to rounding:
#
# | command | computes |
# |---|---|
# | `python program.py --output_dir=DIR` | on all GPUs of this machine, else on its CPU |
# | `... --devices=GPU:0,GPU:1` | on these GPUs, a part of each cohort on each |
# | `... --runtime=cpp` | in TFF's own runtime, on the CPU |
#
# In a clone, `make gpu` installs what TensorFlow needs for [GPUs](../../docs/guides/gpus.md). For
# them, give the data source `capacity=tff_pfl.Ladder(10)`: clients, padded to whole batches of 10,
# then form few groups, each of which is computed at once.
#
# [Runtime](../../docs/guides/runtime.md) has all choices. A program that also evaluates, and guards
# against edited files and full disks, is in the guide to
# [federated programs](../../docs/guides/programs.md). If the loop needs no changes, `tff_pfl.train`
# is such a program, ready-made, and `programs/train.py` its command.

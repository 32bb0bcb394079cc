"""Networks in PyTorch, and files of clients in the format of PFLlib and its descendants."""

import argparse
import os
import pathlib
import sys

import common
import numpy as np
from torch import nn

FOREVER = 10**9


def network(name):
    """Returns one of `common.NETWORKS`, for images with channels first."""
    *hidden, head = common.NETWORKS[name][1]
    layers = []
    for shape in hidden:
        if len(shape) == 4:
            layers += [nn.Conv2d(shape[2], shape[3], shape[0]), nn.ReLU(), nn.MaxPool2d(2)]
        else:
            layers += [nn.Flatten(), nn.Linear(*shape), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(*head))


def num_weights(model):
    """Returns the number of weights of a model."""
    return sum(weight.numel() for weight in model.parameters())


def channels_first(x):
    """Returns images in PyTorch's layout, float32 in [0, 1]."""
    return np.moveaxis(common.scaled(x), -1, -3)


def enter(checkout, dataset, work):
    """Makes and enters the folders that PFLlib's programs expect, with files of all clients.

    A test set is one image, because rounds do not use it.

    Args:
        checkout: The folder of the repository. Its modules can be imported afterwards.
        dataset: The name of the data set.
        work: The arguments of the contestant.
    """
    sys.path.insert(0, os.path.join(checkout, "system"))
    folder = pathlib.Path("dataset") / dataset
    for split, last in (("train", None), ("test", 1)):
        (folder / split).mkdir(parents=True)
        for client, (x, y) in enumerate(zip(*common.client_data(work), strict=True)):
            examples = {"x": channels_first(x[:last]), "y": y[:last]}
            np.savez_compressed(folder / split / f"{client}.npz", data=examples)
    os.mkdir("system")
    os.chdir("system")


def server_options(work, dataset, model, **others):
    """Returns the command-line options that servers of PFLlib and its descendants read.

    Args:
        work: The arguments of the contestant.
        dataset: The name of the data set.
        model: A `torch.nn.Module`.
        **others: Further options of one server.
    """
    return argparse.Namespace(
        model=model,
        dataset=dataset,
        device="cpu",
        num_classes=common.NUM_CLASSES,
        num_clients=work.clients,
        join_ratio=work.clients_per_round / work.clients,
        batch_size=work.batch_size,
        local_learning_rate=work.learning_rate,
        mu=0.1,
        global_rounds=FOREVER,
        eval_gap=FOREVER,
        **others,
    )

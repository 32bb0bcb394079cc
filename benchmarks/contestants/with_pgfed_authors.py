"""Runs rounds of the PGFed authors' code, in the server's own loop, `train`.

The code fixes its optimizer's momentum at 0.9.
"""

import importlib

import common
import torch_parts


def main():
    turns, work = common.Turns(), common.arguments()
    dataset = "cifar10"
    torch_parts.enter(work.checkout, dataset, work)
    models = importlib.import_module("flcore.trainmodel.models")
    model = models.FedAvgCNN(in_features=3, num_classes=common.NUM_CLASSES, dim=1600)
    options = torch_parts.server_options(
        work,
        dataset,
        model,
        algorithm="PGFed",
        local_steps=work.epochs,
        lambdaa=0.01,
        beta=0.0,
        goal="cnn",
        hist_dir="../results/",
        log_dir="../logs/",
        ckpt_dir="../checkpoints/",
    )
    server = importlib.import_module("flcore.servers.serverpgfed").PGFed(options, work.seed)
    server.select_clients = turns.before_each(server.select_clients)
    server.evaluate = lambda: None
    turns.ready(torch_parts.num_weights(model), "torch")
    server.train()


if __name__ == "__main__":
    main()

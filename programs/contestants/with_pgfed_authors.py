"""Rounds of PGFed by its authors' code, in the loop of the server's `train`.

Its optimizer has a momentum of 0.9, which is no argument.
"""

import argparse
import importlib

import common
import torch_parts

FOREVER = 10**9


def main():
    turns, work = common.Turns(), common.arguments()
    dataset = "cifar10"
    torch_parts.enter(work.checkout, dataset, work)
    models = importlib.import_module("flcore.trainmodel.models")
    model = models.FedAvgCNN(in_features=3, num_classes=common.NUM_CLASSES, dim=1600)
    options = argparse.Namespace(
        model=model,
        dataset=dataset,
        algorithm="PGFed",
        device="cpu",
        num_classes=common.NUM_CLASSES,
        num_clients=work.clients,
        join_ratio=work.clients_per_round / work.clients,
        batch_size=work.batch_size,
        local_steps=work.epochs,
        local_learning_rate=work.learning_rate,
        mu=0.1,
        lambdaa=0.01,
        beta=0.0,
        global_rounds=FOREVER,
        eval_gap=FOREVER,
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

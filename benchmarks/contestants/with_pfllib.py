"""Runs rounds of PFLlib's servers and clients, in the server's own loop, `train`."""

import copy
import importlib

import common
import torch
import torch_parts
from torch import nn

SERVERS = {"fedavg": "FedAvg", "fedrep": "FedRep", "ditto": "Ditto", "apfl": "APFL"}
MODULES = {"fedavg": "avg", "fedrep": "rep", "ditto": "ditto", "apfl": "apfl"}


def main():
    turns, work = common.Turns(), common.arguments()
    dataset = "Cifar10"
    torch_parts.enter(work.checkout, dataset, work)
    torch.manual_seed(work.seed)
    models = importlib.import_module("flcore.trainmodel.models")
    model = torch_parts.network(work.network)
    if work.network == "cnn":
        model = models.FedAvgCNN(in_features=3, num_classes=common.NUM_CLASSES, dim=1600)
    num_weights = torch_parts.num_weights(model)
    if work.method == "fedrep":
        if work.network == "cnn":
            head, model.fc = copy.deepcopy(model.fc), nn.Identity()
        else:
            head, model = model[-1], model[:-1]
        model = models.BaseHeadSplit(model, head)
    server = importlib.import_module(f"flcore.servers.server{MODULES[work.method]}")
    server = getattr(server, SERVERS[work.method])(options(work, dataset, model), 0)
    server.select_clients = turns.before_each(server.select_clients)
    server.evaluate = server.evaluate_personalized = lambda: None
    turns.ready(num_weights, "torch")
    server.train()


def options(work, dataset, model):
    """Returns the options of `system/main.py`: its defaults except for the work."""
    return torch_parts.server_options(
        work,
        dataset,
        model,
        algorithm=SERVERS[work.method],
        local_epochs=work.epochs,
        plocal_epochs=work.epochs,
        alpha=0.5,
        goal="test",
        save_folder_name="items",
        top_cnt=100,
        auto_break=False,
        random_join_ratio=False,
        few_shot=0,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        time_select=False,
        time_threthold=10000,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
    )


if __name__ == "__main__":
    main()

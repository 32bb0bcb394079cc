"""Runs rounds of Flower's FedAvg in its simulation, with a client in PyTorch."""

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import functools

import common
import numpy as np
import torch
import torch_parts
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset


def client_app(work, folder, network):
    """Returns a client that trains the received network on its partition, read from a file."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        x, y = (np.load(f"{folder}/{name}{client}.npy") for name in "xy")
        examples = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), work.learning_rate)
        loader = DataLoader(examples, work.batch_size, shuffle=True)
        for _ in range(work.epochs):
            for x_batch, y_batch in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x_batch), y_batch).backward()
                optimizer.step()
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def main():
    turns, work = common.Turns(has_workers=True), common.arguments()
    torch.manual_seed(work.seed)
    for client, (x, y) in enumerate(zip(*common.client_data(work), strict=True)):
        np.save(f"x{client}.npy", torch_parts.channels_first(x))
        np.save(f"y{client}.npy", y)
    build = functools.partial(torch_parts.network, work.network)
    network = build()
    app = ServerApp()

    @app.main()
    def serve(grid, context):
        strategy = FedAvg(
            fraction_train=work.clients_per_round / work.clients,
            fraction_evaluate=0.0,
            min_available_nodes=work.clients,
        )
        strategy.configure_train = turns.before_each(strategy.configure_train)
        turns.ready(torch_parts.num_weights(network), "flwr", "ray", "torch")
        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=torch_parts.FOREVER)

    run_simulation(app, client_app(work, os.getcwd(), build), work.clients)


if __name__ == "__main__":
    main()

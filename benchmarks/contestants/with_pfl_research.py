"""Runs rounds of pfl-research's FedAvg with PyTorch, in the algorithm's own loop, `run`."""

import common
import numpy as np
import torch
import torch_parts
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Classifier(torch.nn.Module):
    """A network with the methods that pfl-research needs."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self.network(x), y)

    def metrics(self, x, y):  # pfl-research requires this method
        return {}


class Wait(TrainingProcessCallback):
    """A callback that waits for the driver between rounds."""

    def __init__(self, turns):
        self.turns = turns

    def on_train_begin(self, *, model):
        self.turns.next()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.turns.next()
        return False, Metrics()


def main():
    turns, work = common.Turns(), common.arguments()
    np.random.seed(work.seed)
    torch.manual_seed(work.seed)
    users = {
        client: [torch.from_numpy(torch_parts.channels_first(x).copy()), torch.from_numpy(y)]
        for client, (x, y) in enumerate(zip(*common.client_data(work), strict=True))
    }
    sampler = get_user_sampler("minimize_reuse", range(work.clients))
    dataset = FederatedDataset.from_slices(users, sampler)
    network = torch_parts.network(work.network)
    classifier = Classifier(network)
    model = PyTorchModel(
        classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    turns.ready(torch_parts.num_weights(network), "pfl", "torch")
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=torch_parts.FOREVER,
            evaluation_frequency=torch_parts.FOREVER,
            train_cohort_size=work.clients_per_round,
            val_cohort_size=None,
        ),
        SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=work.learning_rate,
            local_batch_size=work.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Wait(turns)],
    )


if __name__ == "__main__":
    main()

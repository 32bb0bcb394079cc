"""Tests how the examples of clients are padded."""

import numpy as np

from tests.marks import together
from tff_pfl import data, models
from tff_pfl.clients import Ladder
from tff_pfl.experiment.capacity import suitable_capacity

LINEAR, CNN = ("mlp", {"hidden": ()}), ("lenet", {})


@together(
    ("network", "sizes", "clients", "batch_size", "expected"),
    [
        (LINEAR, [12, 16, 25], 40, 20, Ladder(20)),
        (LINEAR, [12, 16, 25], 10, 20, None),  # too few clients
        (LINEAR, [1, 21, 41, 61, 81], 40, 20, Ladder(20)),  # in two groups
        (LINEAR, [1, 201, 401, 601, 801], 40, 20, None),  # too many groups
        (LINEAR, [60, 70, 80], 40, 70, None),  # too large steps
        (LINEAR, [1, 5], 40, 100, Ladder(6)),  # no client fills a batch
        (CNN, [12, 16, 20], 40, 20, None),
    ],
)
def test_clients_are_grouped_if_that_is_faster(network, sizes, clients, batch_size, expected):
    name, options = network
    model = models.build(name, (28, 28, 1), 10, **options)
    nobody = np.zeros([0, 1], np.float32), np.zeros([0], np.int32)
    dataset = data.FederatedDataset.from_client_arrays(
        [(np.zeros([n, 1], np.float32), np.zeros(n, np.int32), *nobody) for n in 20 * sizes],
        num_classes=10,
    )
    assert suitable_capacity(model, dataset, clients, batch_size) == expected

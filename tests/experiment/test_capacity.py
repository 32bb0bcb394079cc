"""Tests how the examples of clients are padded, and when their work is compiled."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl import data, models, runtime
from tff_pfl.clients import Ladder
from tff_pfl.experiment import capacity
from tff_pfl.experiment.capacity import pays_to_compile, suitable_capacity
from tff_pfl.local import LocalTraining

LINEAR, CNN = ("mlp", {"hidden": ()}), ("lenet", {})


@pytest.mark.thorough
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
    model, dataset = model_of(network), dataset_of(20 * sizes)
    assert suitable_capacity(model, dataset, clients, batch_size) == expected


def test_compiled_loops_pad_clients_themselves():
    model, dataset = model_of(LINEAR), dataset_of([12, 16, 25] * 20)
    context = runtime.create_graph_context(devices="CPU:0")
    with tff.framework.get_context_stack().install(context), runtime.compiling(True):
        assert suitable_capacity(model, dataset, 40, 20) is None


@together(
    ("network", "client_rounds", "options", "expected"),
    [
        (LINEAR, 25_000, {}, True),  # two steps of 20 for each client
        (LINEAR, 24_999, {}, False),
        (LINEAR, 2_000, {"epochs": 13}, True),
        (LINEAR, 2_000, {"epochs": None, "steps": 25}, True),
        (CNN, 1_000_000, {}, False),
        (("mlp", {"hidden": (1_000,)}), 1_000_000, {}, False),  # 794,010 weights
    ],
)
def test_long_trainings_of_light_models_are_compiled(network, client_rounds, options, expected):
    optimizer = tff.learning.optimizers.build_sgdm(0.1)
    local = LocalTraining(optimizer, batch_size=20, **options)
    dataset = dataset_of([30, 40])
    assert pays_to_compile(model_of(network), dataset, local, client_rounds) == expected


@pytest.mark.parametrize(
    ("network", "onednn", "variable", "expected"),
    [(CNN, False, None, 1), (CNN, False, "0", 0), (CNN, True, None, 0), (LINEAR, False, None, 0)],
)
def test_warning_of_convolutions_without_onednn(
    monkeypatch, caplog, network, onednn, variable, expected
):
    capacity._hint_at_onednn.cache_clear()
    monkeypatch.setattr(runtime, "uses_onednn", lambda: onednn)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if variable is not None:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", variable)
    for _ in range(2):
        capacity.warn_of_slow_convolutions(model_of(network))
    assert len(caplog.messages) == expected


def model_of(network):
    name, options = network
    return models.build(name, (28, 28, 1), 10, **options)


def dataset_of(sizes):
    nobody = np.zeros([0, 1], np.float32), np.zeros([0], np.int32)
    return data.FederatedDataset.from_client_arrays(
        [(np.zeros([n, 1], np.float32), np.zeros(n, np.int32), *nobody) for n in sizes],
        num_classes=10,
    )

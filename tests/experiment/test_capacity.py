"""Tests how the examples of clients are padded, and when their work is compiled."""

from unittest import mock

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl import data, models, runtime
from tff_pfl.clients import Ladder
from tff_pfl.experiment import capacity
from tff_pfl.experiment.capacity import compilation, suitable_capacity
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


@pytest.mark.parametrize(("vectorize", "pays"), [("auto", True), ("always", False)])
def test_compiled_loops_and_lanes_pad_clients_themselves(vectorize, pays):
    model, dataset = model_of(LINEAR), dataset_of([12, 16, 25] * 20)
    context = runtime.create_graph_context(devices="CPU:0", vectorize=vectorize)
    with tff.framework.get_context_stack().install(context), runtime.compiling(pays):
        assert suitable_capacity(model, dataset, 40, 20) is None


def local_training(**options):
    optimizer = tff.learning.optimizers.build_sgdm(0.1)
    return LocalTraining(optimizer, batch_size=20, **options)


@together(
    ("network", "rounds", "options", "expected"),
    [
        (LINEAR, 2_500, {}, True),  # of 10 clients; two steps of 20 for each
        (LINEAR, 2_499, {}, False),
        (LINEAR, 200, {"epochs": 13}, True),
        (LINEAR, 200, {"epochs": None, "steps": 25}, True),
        (CNN, 100_000, {}, False),
        (("mlp", {"hidden": (1_000,)}), 100_000, {}, False),  # 794,010 weights
    ],
)
def test_long_trainings_of_light_models_are_compiled(network, rounds, options, expected):
    local, dataset = local_training(**options), dataset_of([30, 40])
    assert compilation(model_of(network), dataset, local, rounds, 10).pays == expected


@together(
    ("sizes", "rounds", "options", "expected"),
    [
        ([40, 40], 1_000, {}, (False, "1,000 rounds of 2 steps would save about 8 s, and ")),
        ([40, 40], 1_001, {}, (True, "1,001 rounds of 2 steps would save about 8 s, and ")),
        ([20, 400], 300, {}, (False, "300 rounds of 20 steps would save about 24 s, and ")),
        ([20, 400], 301, {}, (True, "301 rounds of 20 steps would save about 24 s, and ")),
        ([20, 400], 301, {"epochs": 2}, (True, "301 rounds of 40 steps ")),
    ],
)
def test_trainings_with_more_rounds_than_shapes_are_worth_are_compiled_on_gpus(
    sizes, rounds, options, expected
):
    """Each step of a cohort saves 4 ms; 1 shape or 3 take 8 s each."""
    with mock.patch.object(runtime, "current_devices", return_value=["GPU:0"]):
        local, dataset = local_training(**options), dataset_of(sizes)
        found = compilation(model_of(CNN), dataset, local, rounds, 2)
    assert found.pays == expected[0]
    assert found.reason.startswith(expected[1])


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

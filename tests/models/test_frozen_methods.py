"""Tests that methods compute the same with frozen weights in files and as constants."""

import io
import pathlib

import numpy as np
import pandas as pd
import pytest
import tensorflow_federated as tff

import tff_pfl
from tests.federation import random_examples, tiny_model
from tff_pfl import models, runtime
from tff_pfl.tracing import frozen

METHODS = {
    "fedavg": {},
    "fedper": {"personal_layers": ["*_up"]},
    "ditto": {},
    "pgfed": {"num_clients": 4, "clients_per_round": 3},
    "fedpg": {},
    "pfedme": {},
}


def mlp():
    return tiny_model()


def transformer():
    options = {"vocabulary": 20, "width": 8, "depth": 1, "heads": 2, "prompts": 2}
    return models.build("transformer", (6,), 3, mean=None, **options)


def metrics(folder, method, monkeypatch, least, network=mlp, **options):
    """Trains a method on adapters, and returns the bytes of its metrics."""
    monkeypatch.setattr(frozen, "LEAST_BYTES", least)
    data = [random_examples(size, seed) for seed, size in enumerate((9, 4, 13, 7))]
    if network is transformer:
        rng = np.random.default_rng(0)
        data = [d._replace(x=rng.integers(0, 20, (len(d.y), 6), np.int32)) for d in data]
    dataset = tff_pfl.FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    model = models.lora(network(), rank=2)
    local = tff_pfl.LocalTraining(tff_pfl.OPTIMIZERS["sgd"](0.1), epochs=2, batch_size=4)
    made = tff_pfl.make(method, model, local, **METHODS[method])
    experiment = tff_pfl.Experiment(made, dataset, rounds=3, clients_per_round=3)
    context = runtime.create_graph_context(**options)
    with tff.framework.get_context_stack().install(context):
        run = tff_pfl.train(experiment, folder / f"{least}", verbose=False)
    return pathlib.Path(run.folder, "metrics.csv").read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_files_change_no_bit(method, tmp_path, monkeypatch):
    """Compares weights in files with constants, where graphs are the same: in loops."""
    found = [
        metrics(tmp_path, method, monkeypatch, least, vectorize="never") for least in (0, 1 << 40)
    ]
    assert found[0] == found[1]


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"vectorize": "always"}, {"jit_compile": True}])
@pytest.mark.parametrize("network", [mlp, transformer])
def test_vectorized_and_compiled_rounds_are_those_of_loops(network, options, tmp_path, monkeypatch):
    def trained(folder, options):
        return metrics(folder, "ditto", monkeypatch, 0, network, **options)

    found = [
        pd.read_csv(io.BytesIO(trained(tmp_path / f"{i}", its)))
        for i, its in enumerate((options, {"vectorize": "never"}))
    ]
    pd.testing.assert_frame_equal(*found, rtol=1e-4, atol=1e-5)

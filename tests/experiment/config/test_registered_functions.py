"""Tests that wrong results of a user's own functions are refused by name."""

import pytest
import tensorflow as tf

import tff_pfl
from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl.experiment import ConfigError, build_dataset, build_model, build_process


def build(config):
    dataset = build_dataset(config)
    return build_process(config, build_model(config, dataset), dataset)


@pytest.mark.parametrize(
    ("registry", "function", "changes", "message"),
    [
        (
            tff_pfl.OPTIMIZERS,
            lambda learning_rate: None,
            {"local": {"optimizer": "own"}},
            r"config\.local: The optimizer must be of type Optimizer, got None",
        ),
        slow(
            tff_pfl.SCHEDULES,
            lambda: lambda round_num: tf.ones([2]),
            {"local": {"schedule": {"name": "own"}}},
            "config.local.schedule: Shape must be rank 0",
        ),
        (
            tff_pfl.SCHEDULES,
            lambda: lambda round_num: 1.0 - round_num / 2.0,
            {"local": {"schedule": {"name": "own"}}, "rounds": 4},
            "config.local.schedule: 'own' has the factor -0.5 in round 3 ",
        ),
        slow(
            tff_pfl.SCHEDULES,
            lambda: lambda round_num: 1.0 / round_num,
            {"local": {"schedule": {"name": "own"}}},
            "config.local.schedule: 'own' has the factor inf in round 0 ",
        ),
        (
            tff_pfl.PARTITIONERS,
            lambda labels, num_clients, rng: None,
            {"data": {"partitioner": "own"}},
            "The partitioner 'own' must return the rows of each client, got None",
        ),
        (
            tff_pfl.DATASETS,
            lambda data_dir: None,
            {"data": {"name": "own"}},
            r"config\.data: .* must be LabelledImages, got None",
        ),
        slow(
            tff_pfl.AGGREGATORS,
            lambda: None,
            {"aggregator": {"name": "own"}},
            r"config\.aggregator: The aggregator must be a factory of tff.aggregators, got None",
        ),
        (
            tff_pfl.ATTACKS,
            lambda algorithm, **options: None,
            {"attack": {"name": "own", "client_ids": (0,)}},
            r"config\.attack: The result of the attack 'own' must be of type Algorithm, got None",
        ),
        slow(
            tff_pfl.COMPRESSORS,
            lambda: None,
            {"compression": {"name": "own", "error_feedback": False}},
            r"config\.compression: The compressor must be of type Compressor, got None",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, tff_pfl.registry.Registry) else "",
)
def test_wrong_results_are_refused(monkeypatch, registry, function, changes, message):
    monkeypatch.setitem(registry._registered, "own", function)
    with pytest.raises(ConfigError, match=message):
        build(tiny_config("fedavg", **changes))

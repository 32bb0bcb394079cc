"""Tests that wrong results of a user's own functions are refused by name."""

import pytest
import tensorflow as tf

import tff_pfl
from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl.config import ConfigError, experiment_of
from tff_pfl.config.errors import config_errors


def build(config):
    with config_errors(None):
        return experiment_of(config).process


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
            r"config\.data: .* LabelledImages .* got None",
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
    ids=lambda value: value.kind if isinstance(value, tff_pfl.arguments.registry.Registry) else "",
)
def test_wrong_results_are_refused(monkeypatch, registry, function, changes, message):
    monkeypatch.setitem(registry._registered, "own", function)
    with pytest.raises(ConfigError, match=message):
        build(tiny_config("fedavg", **changes))


def test_preprocess_that_standardises_over_the_batch_is_refused(monkeypatch):
    def standardised(x):
        x = tf.cast(x, tf.float32)
        return (x - tf.reduce_mean(x, axis=0)) / (1 + tf.math.reduce_std(x, axis=0))

    def own(image_shape, num_classes) -> tff_pfl.Model:
        def network():
            flat = tf.keras.layers.Flatten(input_shape=image_shape)
            return tf.keras.Sequential([flat, tf.keras.layers.Dense(num_classes, name="head")])

        return tff_pfl.from_keras(network, input_shape=image_shape, preprocess=standardised)

    monkeypatch.setitem(tff_pfl.MODELS._registered, "own", own)
    config = tiny_config("fedavg", model={"name": "own"})
    config.model.options = {}
    with pytest.raises(ConfigError, match="depends on other rows .* In preprocess, layers"):
        build(config)

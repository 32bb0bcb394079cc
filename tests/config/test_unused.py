"""Tests warnings about settings without an effect."""

import pytest

from tests.runs import ROOT, config_of_flags
from tff_pfl.config import ConfigError, build_local, default_config, unused_settings
from tff_pfl.config.options import value_of

DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"
# A setting; the values of a config that turn it off; its switch; the value that turns it on.
UNUSED = [
    ("early_stop.metric", {}, "early_stop.patience", 3),
    (
        "evaluation.fine_tune_learning_rate",
        {"evaluation.fine_tune_learning_rate": 0.1},
        "evaluation.fine_tune_epochs",
        2,
    ),
    ("evaluation.subsample", {}, "evaluation.generalization", "always"),
    (
        "new_clients.fine_tune_epochs",
        {"new_clients.number": 2, "new_clients.evaluated": False},
        "new_clients.evaluated",
        True,
    ),
    ("data.num_clients", {"data.partitioner": "natural"}, "data.partitioner", "dirichlet"),
    ("data.imbalance", {"data.partition_file": "a.npz"}, "data.partition_file", ""),
    ("data.classes_per_client.classes", {}, "data.partitioner", "classes_per_client"),
    ("attack.factor", {}, "attack.client_ids", (0,)),
    ("local.epochs", {"local.steps": 2}, "local.steps", None),
    ("local.momentum", {"local.optimizer": "adam"}, "local.optimizer", "sgd"),
    ("local.momentum", {"algorithm": "fedpg"}, "algorithm.gradient", "pseudo"),
    (
        "local.optimizer",
        {"algorithm": "ifca", "algorithm.averaging": "gradients"},
        "algorithm.averaging",
        "models",
    ),
]


def config_of(settings):
    config = default_config(settings.get("algorithm", "fedavg"))
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        if section:
            value_of(config, section)[name] = value
    return config


def test_settings_without_effect_are_reported():
    for key, off, switch, on in UNUSED:
        (warning,) = unused_settings(config_of(off), [key])
        assert warning.startswith(f"config.{key} has no effect: config.{switch} is ")
        assert list(unused_settings(config_of(off | {switch: on}), [key])) == []


def test_settings_of_training_have_an_effect_beside_exact_gradients():
    fedpg = {"algorithm": "fedpg"}
    for key, others in (
        ("local.learning_rate", {}),
        ("local.momentum", {"evaluation.fine_tune_epochs": 2}),
        ("local.momentum", {"evaluation.further_models": ("locally_trained",)}),
        ("local.momentum", {"new_clients.number": 2}),
    ):
        assert list(unused_settings(config_of(fedpg | others), [key])) == []
    new_clients = {"new_clients.number": 2, "evaluation.fine_tune_learning_rate": 0.1}
    key = "evaluation.fine_tune_learning_rate"
    assert list(unused_settings(config_of(new_clients), [key])) == []


def test_flag_without_effect_prints_a_warning(monkeypatch, capsys):
    flags = ("--config.local.epochs=3", "--config.local.steps=2", "--config.rounds=1")
    config = config_of_flags(monkeypatch, DIGITS, *flags)
    assert (config.local.epochs, config.local.steps) == (3, 2)
    message = "warning: --config.local.epochs has no effect: config.local.steps is 2.\n"
    assert capsys.readouterr().err == message


def test_none_is_not_reported_as_unused(monkeypatch, capsys):
    flags = ("--config.local.epochs=None", "--config.local.steps=2")
    flags += ("--config.attack.fraction=None", "--config.attack.client_ids=(0,)")
    flags += ("--config.data.num_clients=None", "--config.data.partitioner=natural")
    config = config_of_flags(monkeypatch, DIGITS, *flags)
    assert capsys.readouterr().err == ""
    assert build_local(config).steps == 2
    config.local.steps = None
    with pytest.raises(ConfigError, match="config.local: epochs and steps are both None"):
        build_local(config)

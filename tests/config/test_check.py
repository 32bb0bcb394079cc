"""Tests that mistakes in a config are refused before the run is built."""

import importlib
import re

import pytest

from tests.config.small import small
from tests.marks import together
from tff_pfl import algorithms
from tff_pfl.config import ConfigError, check_config, default_config
from tff_pfl.config.options import value_of

DISTRIBUTED = {
    "privacy__epsilon": 2.0,
    "privacy__mechanism": "distributed",
    "privacy__clipping": "fixed",
}


def changed(**changes):
    config = small()
    config.unlock()
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (config[section] if section else config)[name] = value
    return config


@together(
    ("changes", "message"),
    [
        ({"round": 3}, "Unknown config key 'round'"),
        ({"algorithm__lambda_": 1}, "Unknown option of algorithm 'fedavg' 'lambda_'.*py:fedavg"),
        ({"model__name": "lenet"}, "Unknown option of model 'lenet' 'hidden'. Valid: none"),
        ({"evaluation__split": "tset"}, "Unknown config.evaluation.split 'tset'"),
        ({"evaluation__further_models": ("local",)}, "Unknown further model 'local'"),
        ({"algorithm__weighting": None}, "config.algorithm.weighting must be set, got None"),
        (
            {"attack__client_ids": (1,), "attack__fraction": 0.2},
            r"fraction=0.2, but config.attack.client_ids=\(1,\): both choose the attackers. Set",
        ),
        ({"participation__class_shares": (0.0,)}, "config.participation: class_shares="),
        (
            {"privacy__epsilon": 2.0, "privacy__noise_multiplier": 1.0},
            "epsilon=2.0, but config.privacy.noise_multiplier=1.0: one follows from the other",
        ),
        (
            {"privacy__epsilon": 2.0, "aggregator__name": "robust"},
            "aggregator.name='robust', but config.privacy.epsilon=2.0: privacy has its own",
        ),
        (
            {"privacy__epsilon": 2.0, "participation__over_selection": 2.0},
            "config.participation: over_selection=2.0",
        ),
        (
            {"participation__selector": {"name": "power_of_choice"}},
            "config.participation.selector.candidates must be set, got None",
        ),
        ({**DISTRIBUTED, "privacy__clipping": "adaptive"}, "clipping='adaptive'.* to 'fixed'"),
        ({**DISTRIBUTED, "participation__dropout": (0.1,)}, "config.participation: dropout="),
        ({"privacy__delta": 0.1}, "privacy.delta=0.1, but there is no privacy without epsilon or"),
        (
            {"compression__name": "half", "aggregator__name": "secure"},
            "name='half', but .*aggregator.name='secure': .* decoded one by one .* Set one of them",
        ),
        (
            {"compression__name": "half", "privacy__noise_multiplier": 0.0},
            "name='half', but config.privacy.noise_multiplier=0.0: ",
        ),
        ({"early_stop__patience": 1, "early_stop__metric": "globl/loss"}, "config.early_stop: Unk"),
    ],
)
def test_wrong_configs_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_config(changed(**changes))


def test_missing_key_is_refused():
    for key in ("imports", "local", "local.epochs"):
        config = changed()
        section, _, name = key.rpartition(".")
        with config.unlocked():
            del value_of(config, section)[name]
        with pytest.raises(ConfigError, match=f"config.{key} is missing. Start a config with"):
            check_config(config)


def test_advice_names_a_config_of_the_algorithm():
    for algorithm in algorithms.ALGORITHMS:
        config = default_config(algorithm)
        with config.unlocked():
            config.algorithm.whatever = 1
        with pytest.raises(ConfigError) as raised:
            check_config(config)
        (name, choice) = re.search(r"--config=configs/(\w+).py:(\w+)", str(raised.value)).groups()
        chosen = importlib.import_module(f"configs.{name}").get_config(choice)
        assert chosen.algorithm.name == algorithm

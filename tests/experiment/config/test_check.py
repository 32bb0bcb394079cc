"""What is wrong in a config is said before anything is built."""

import importlib
import re

import pytest

from tests.experiment.config.small import small
from tff_pfl import algorithms
from tff_pfl.experiment import ConfigError, check_config, default_config
from tff_pfl.experiment.config.options import value_of

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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "Unknown config key 'round'. Did you mean 'rounds'"),
        ({"local__epoch": 3}, "Unknown config key 'epoch'. Did you mean 'epochs'"),
        ({"algorithm__lambda_": 1}, "Unknown option of algorithm 'fedavg' 'lambda_'.*py:fedavg"),
        ({"algorithm__name": "fedawg"}, "Unknown algorithm 'fedawg'. Did you mean 'fedavg'"),
        ({"model__name": "lennet"}, "Unknown model 'lennet'. Did you mean 'lenet'"),
        ({"local__optimizer": "sgdd"}, "Unknown optimizer 'sgdd'. Did you mean 'sgd'"),
        ({"evaluation__split": "tset"}, "Unknown split 'tset'. Did you mean 'test'"),
        ({"rounds": 0}, "config.rounds must be a whole number of at least 1, got 0"),
        ({"rounds": None}, "config.rounds is None, but must be of type int"),
        ({"local__momentum": None}, "config.local.momentum is None, but must be of type float"),
        ({"algorithm__weighting": None}, "config.algorithm.weighting is None, .* of type str"),
        (
            {"local__batch_size": 0},
            "local.batch_size must be a whole number of at least 1, got 0",
        ),
        (
            {"evaluation__every": -1},
            "evaluation.every must be a whole number of at least 0, got -1",
        ),
        (
            {"evaluation__fine_tune_epochs": -1},
            "config.evaluation.fine_tune_epochs must be a whole number of at least 0, got -1",
        ),
        ({"data__fractions": None}, "config.data.fractions is None, but must be of type tuple"),
        ({"model__options": {"hidden": None}}, "model.options.hidden is None, .* of type tuple"),
        (
            {"model__options": {"hiden": (4,)}},
            "Unknown option of model 'mlp' 'hiden'. Did",
        ),
        ({"model__name": "lenet"}, "Unknown option of model 'lenet' 'hidden'. Valid: none"),
        (
            {"evaluation__generalization": "lats"},
            "config.evaluation: Unknown generalization 'lats'. Did you mean 'last'",
        ),
        ({"attack__factors": 3.0}, "Unknown option of attack .* 'factors'. Did you mean 'factor'"),
        ({"attack__name": "scaled"}, "Unknown attack 'scaled'. Did you mean 'scaled_uploads'"),
        (
            {"attack__client_ids": (1,), "attack__fraction": 0.2},
            r"client_ids=\(1,\) and fraction=0.2: either says who attacks. Set the other",
        ),
        ({"data__partitioner": "iidd"}, "Unknown partitioner 'iidd'. Did you mean 'iid'"),
        ({"aggregator__name": "rubust"}, "Unknown aggregator 'rubust'. Did you mean 'robust'"),
        ({"aggregator__options": {"bits": 3}}, "Unknown option of aggregator '' 'bits'"),
        (
            {"privacy__epsilon": 2.0, "privacy__noise_multiplier": 1.0},
            "epsilon=2.0 and noise_multiplier=1.0: one follows from the other. Set one to None",
        ),
        (
            {"privacy__epsilon": 2.0, "aggregator__name": "robust"},
            "aggregator.name='robust', but with config.privacy it is .* Set it to ''",
        ),
        (
            {"privacy__epsilon": 2.0, "participation__over_selection": 2.0},
            "over_selection=2.0, but with privacy whether .* depend on others. Set it to 1",
        ),
        (
            {"privacy__epsilon": 2.0, "participation__availability": {"name": "diurnal"}},
            "config.participation: availability=Diurnal.*, but .* Set sampling to 'poisson'",
        ),
        (
            {"participation__sampling": "poison"},
            "config.participation: Unknown sampling 'poison'. Did you mean 'poisson'",
        ),
        (
            {"privacy__epsilon": 2.0, "privacy__mechanism": "local"},
            "Unknown config.privacy.mechanism 'local'. .* Valid: 'central', 'distributed'",
        ),
        (
            {"privacy__epsilon": 2.0, "privacy__bits": 16},
            "privacy.bits=16, but config.privacy.mechanism='central': .* to 'distributed'",
        ),
        (
            {**DISTRIBUTED, "privacy__clipping": "adaptive"},
            "clipping='adaptive', but with .*='distributed' the server has no noise .* to 'fixed'",
        ),
        (
            {**DISTRIBUTED, "participation__sampling": "poisson"},
            "sampling='poisson', but with .*='distributed' every client .* Set it to 'fixed'",
        ),
        (
            {**DISTRIBUTED, "participation__dropout": (0.1,)},
            r"dropout=\(0.1,\), but with .*='distributed' every client .* Set it to \(0.0,\)",
        ),
        (
            {
                **DISTRIBUTED,
                "participation__deadline": 2.0,
                "participation__median_seconds": (1.0,),
            },
            "deadline=2.0, but with .*='distributed' every client .* Set it to None",
        ),
        ({"privacy__delta": 0.1}, "privacy.delta=0.1, but there is no privacy without epsilon or"),
        (
            {"privacy__clipping": "fix"},
            "Unknown config.privacy.clipping 'fix'. Did you mean 'fixed",
        ),
        (
            {"compression__name": "topk"},
            "Unknown compressor 'topk'. Did you mean 'top_k'",
        ),
        (
            {"compression__error_feedback": True},
            "Unknown option of compressor '' 'error_feedback'. Valid: none",
        ),
        (
            {"compression__name": "half", "aggregator__name": "secure"},
            "name='half', but .*aggregator.name='secure': .* decoded by itself, .* Set one to ''",
        ),
        (
            {"compression__name": "half", "privacy__epsilon": 2.0},
            "name='half', but there is config.privacy: .* plain mean. Set the name to ''",
        ),
        ({"server__optimizer": "adm"}, "Unknown optimizer 'adm'. Did you mean 'adam'"),
        ({"server__learning_rate": 0.5}, r"server.learning_rate=0.5, but .*optimizer is ''"),
        ({"server__momentum": 0.5}, r"server.momentum=0.5, but .*optimizer is ''"),
        ({"algorithm__name": ""}, "Unknown algorithm ''"),
    ],
)
def test_wrong_configs(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_config(changed(**changes))


@pytest.mark.parametrize("key", ["imports", "local", "local.epochs"])
def test_a_key_that_is_missing(key):
    config = changed()
    section, _, name = key.rpartition(".")
    with config.unlocked():
        del value_of(config, section)[name]
    with pytest.raises(ConfigError, match=f"config.{key} is missing. A config begins as"):
        check_config(config)


def test_the_advice_to_choose_another_config_is_taken_by_it():
    for algorithm in algorithms.ALGORITHMS:
        config = default_config(algorithm)
        with config.unlocked():
            config.algorithm.whatever = 1
        with pytest.raises(ConfigError) as raised:
            check_config(config)
        (name, choice) = re.search(r"--config=configs/(\w+).py:(\w+)", str(raised.value)).groups()
        chosen = importlib.import_module(f"configs.{name}").get_config(choice)
        assert chosen.algorithm.name == algorithm

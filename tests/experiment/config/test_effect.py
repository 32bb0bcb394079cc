"""Settings that have no effect."""

import contextlib

import pytest

from tests.runs import ROOT, config_of_flags
from tff_pfl.experiment import ConfigError, build_local, default_config
from tff_pfl.experiment.config import without_effect
from tff_pfl.experiment.config.options import value_of

DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


IDLE = [
    ("early_stop.metric=global/loss", "", "early_stop.patience=3"),
    ("evaluation.fine_tune_learning_rate=0.1", "", "evaluation.fine_tune_epochs=2"),
    *(
        (
            setting,
            "config.evaluation.generalization = 'never'",
            "evaluation.generalization=always",
        )
        for setting in ("evaluation.subsample=True", "evaluation.synthetic=(0.3,)")
    ),
    ("new_clients.fine_tune_epochs=3", "", "new_clients.number=2"),
    (
        "new_clients.best_epoch=True",
        "config.new_clients.number = 2; config.new_clients.evaluated = False",
        "new_clients.evaluated=True",
    ),
    (
        "evaluation.validation=True",
        "config.evaluation.split = 'validation'",
        "evaluation.split=test",
    ),
    ("data.imbalanced_test=False", "", "data.imbalance=10"),
    ("data.num_clients=7", "config.data.partitioner = 'natural'", "data.partitioner=dirichlet"),
    ("attack.factor=-1.0", "", "attack.client_ids=(0,)"),
    ("local.epochs=3", "config.local.steps = 2", "local.steps=None"),
    ("data.fractions=(0.5,0.2,0.3)", "config.data.merge = False", "data.merge=True"),
    ("data.imbalance=2", "config.data.partition_file = 'a.npz'", "data.partition_file="),
    ("data.classes_per_client.classes=3", "", "data.partitioner=classes_per_client"),
    ("local.momentum=0.9", "config = default_config('fedpg')", "algorithm.gradient=pseudo"),
    ("local.steps=3", "config = default_config('s_fedpg')", "algorithm.gradient=pseudo"),
    ("local.momentum=0.5", "config.local.optimizer = 'adam'", "local.optimizer=sgd"),
    ("server.learning_rate=0.5", "", "server.optimizer=adam"),
    ("privacy.bits=16", "config.privacy.epsilon = 2.0", "privacy.mechanism=distributed"),
    (
        "local.optimizer=adam",
        "config = default_config('ifca'); config.algorithm.averaging = 'gradients'",
        "algorithm.averaging=models",
    ),
]


def test_settings_without_effect():
    for setting, line, switch in IDLE:
        config = default_config()
        config = eval_line(line, config)
        key, switched = setting.partition("=")[0], switch.partition("=")[0]
        set_value(config, setting)
        (idle,) = without_effect(config, [key])
        assert idle.startswith(f"config.{key} has no effect: config.{switched} is ")
        set_value(config, switch)
        assert list(without_effect(config, [key])) == []


def eval_line(line, config):
    """A config that is changed by a line of a config file."""
    names = {"config": config, "default_config": default_config}
    exec(line, names)
    return names["config"]


def set_value(config, setting):
    key, _, value = setting.partition("=")
    *sections, last = key.split(".")
    with contextlib.suppress(NameError, SyntaxError):  # text is without quotes, as in a shell
        value = eval(value)
    with config.ignore_type():
        value_of(config, ".".join(sections))[last] = value


def test_a_flag_without_effect_is_a_warning(monkeypatch, capsys):
    flags = ("--config.local.epochs=3", "--config.local.steps=2", "--config.rounds=1")
    config = config_of_flags(monkeypatch, DIGITS, *flags)
    assert (config.local.epochs, config.local.steps) == (3, 2)
    message = "warning: --config.local.epochs has no effect: config.local.steps is 2.\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("none", "instead"),
    [
        ("local.epochs", "local.steps=2"),
        ("attack.fraction", "attack.client_ids=(0,)"),
        ("data.num_clients", "data.partitioner=natural"),
    ],
)
def test_none_beside_what_is_set_instead_is_no_conflict(monkeypatch, capsys, none, instead):
    config = config_of_flags(monkeypatch, DIGITS, f"--config.{none}=None", f"--config.{instead}")
    assert value_of(config, none) is None and capsys.readouterr().err == ""
    if none == "local.epochs":
        assert build_local(config).steps == 2
        config.local.steps = None
        with pytest.raises(ConfigError, match="config.local: epochs and steps are both None"):
            build_local(config)


@pytest.mark.parametrize(
    ("name", "idle", "switches"),
    [
        ("fedavg", "evaluation.fine_tune_learning_rate=0.1", ["new_clients.number=2"]),
        ("fedpg", "local.learning_rate=0.2", [""]),
        (
            "fedpg",
            "local.momentum=0.9",
            [
                "evaluation.fine_tune_epochs=2",
                "evaluation.further_models=('locally_trained',)",
                "new_clients.number=2",
            ],
        ),
    ],
)
def test_what_has_an_effect_all_the_same(name, idle, switches):
    """Exact gradients do not keep others from training."""
    for switch in switches:
        config = default_config(name)
        for setting in filter(None, [idle, switch]):
            set_value(config, setting)
        assert list(without_effect(config, [idle.partition("=")[0]])) == []

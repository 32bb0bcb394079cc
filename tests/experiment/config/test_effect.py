"""Flags that have no effect."""

import pytest

from tests.own_modules import own_modules
from tests.runs import ROOT, config_of_flags
from tff_pfl.experiment import ConfigError, check_config
from tff_pfl.experiment.config.options import value_of

DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


@pytest.fixture(autouse=True)
def forget_the_folders_of_configs(tmp_path):
    with own_modules(tmp_path):
        yield


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
    (
        "local.optimizer=adam",
        "config = default_config('ifca'); config.algorithm.averaging = 'gradients'",
        "algorithm.averaging=models",
    ),
]


@pytest.fixture
def own_config(tmp_path):
    """`(line) -> flag` of a config file that changes the default config by a line."""

    def write(line):
        path = tmp_path / "own.py"
        path.write_text(
            "from tff_pfl.experiment import default_config\n\n"
            f"def get_config():\n    config = default_config()\n    {line}\n    return config\n"
        )
        return f"--config={path}"

    return write


@pytest.mark.parametrize(("setting", "line", "switch"), IDLE)
def test_a_flag_without_effect_is_refused(monkeypatch, capsys, own_config, setting, line, switch):
    config = own_config(line)
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, config, f"--config.{setting}")
    printed = capsys.readouterr().err
    key, switched = setting.partition("=")[0], switch.partition("=")[0]
    assert f"error: --config.{key} has no effect: config.{switched} is " in printed
    assert f". --config.{switched}=" in printed
    config_of_flags(monkeypatch, config, f"--config.{setting}", f"--config.{switch}")


@pytest.mark.parametrize(
    ("flag", "replaced"),
    [
        ("data.partition_file=a.npz", "data.num_clients=20"),
        ("local.steps=5", "local.epochs=3"),
    ],
)
def test_what_another_flag_replaces_is_refused_where_both_are_set_by_hand(
    monkeypatch, capsys, flag, replaced
):
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, DIGITS, f"--config.{flag}", f"--config.{replaced}")
    key, switch = replaced.partition("=")[0], flag.partition("=")[0]
    assert f"--config.{key} has no effect: config.{switch} is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("none", "instead"),
    [
        ("local.epochs", "local.steps=2"),
        ("attack.fraction", "attack.client_ids=(0,)"),
        ("data.num_clients", "data.partition_file=a.npz"),
        ("data.num_clients", "data.partitioner=natural"),
        ("early_stop.least_gain", "rounds=3"),
    ],
)
def test_none_beside_what_is_set_instead_is_no_conflict(monkeypatch, none, instead):
    flags = (f"--config.{none}=None", f"--config.{instead}")
    config = config_of_flags(monkeypatch, DIGITS, *flags)
    assert value_of(config, none) is None
    config.local.steps = config.local.epochs = None
    with pytest.raises(ConfigError, match="config.local.epochs is None, but must be of type int"):
        check_config(config)


def test_a_rate_of_fine_tuning_is_that_of_new_clients_too(monkeypatch):
    flags = ("--config.new_clients.number=2", "--config.evaluation.fine_tune_learning_rate=0.1")
    assert config_of_flags(monkeypatch, DIGITS, *flags)


@pytest.mark.parametrize(
    "other",
    [
        "local.learning_rate=0.2",
        "evaluation.fine_tune_epochs=2",
        "evaluation.further_models=('locally_trained',)",
        "new_clients.number=2",
    ],
)
def test_exact_gradients_do_not_keep_others_from_training(monkeypatch, own_config, other):
    config = own_config("config = default_config('fedpg')")
    flags = ("--config.local.momentum=0.9",) * (other != "local.learning_rate=0.2")
    assert config_of_flags(monkeypatch, config, *flags, f"--config.{other}")


def test_a_flag_may_be_without_effect_where_another_one_or_the_file_turns_it_off(
    monkeypatch, own_config
):
    off = ("--config.attack.fraction=0", "--config.attack.factor=-1.0")
    assert config_of_flags(monkeypatch, own_config(""), *off).attack.factor == -1
    config = own_config("config.early_stop.metric = 'global/loss'")
    assert config_of_flags(monkeypatch, config).early_stop.metric == "global/loss"
    no_attack = ("--config.attack.name=", "--config.rounds=3")
    assert config_of_flags(monkeypatch, config, *no_attack).rounds == 3

"""Flags of programs, of a config and of its keys."""

import pytest
from absl import flags
from ml_collections import config_flags

from tests.own_modules import own_modules
from tests.runs import ROOT, config_of_flags
from tff_pfl.algorithms import hyperparameters
from tff_pfl.experiment import parse_flags
from tff_pfl.experiment.config.options import value_of
from tff_pfl.local import OPTIMIZERS
from tff_pfl.models import MODELS


@pytest.fixture(autouse=True)
def forget_the_folders_of_configs(tmp_path):
    with own_modules(tmp_path):
        yield


def test_flags_that_do_not_parse(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_flags(["program", "--no_such_flag=1"])
    assert ended.value.code == 1
    assert "error: Unknown command line flag 'no_such_flag'" in capsys.readouterr().err


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """`(flag) -> config`, as a program parses a flag of its config file."""
    path = tmp_path / "numbers.py"
    path.write_text(
        """
import ml_collections
from ml_collections import config_dict

def get_config():
    config = ml_collections.ConfigDict({"steps": 1, "rate": 0.1})
    config.limit = config_dict.placeholder(float)
    config.limit = 3.0
    return config
"""
    )
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())

    def config_of(flag):
        argv = ["program", f"--config={path}", flag]
        config_flags.DEFINE_config_file("config", flag_values=flags.FLAGS, sys_argv=argv)
        parse_flags(argv)
        return flags.FLAGS.config

    return config_of


DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


@pytest.mark.parametrize(
    ("arguments", "name", "options"),
    [
        ([], "mlp", {"hidden": (64,)}),
        (["--config.model.name=mlp"], "mlp", {"hidden": (64,)}),
        (["--config.model.name=resnet18"], "resnet18", MODELS.options("resnet18")),
        (["--config.model.name=resnet18", "--config.model.name", "lenet"], "lenet", {}),
        (
            ["--config.model.options.width=16", "--config.model.name=resnet18"],
            "resnet18",
            MODELS.options("resnet18") | {"width": 16},
        ),
        (
            ["--config.model.name=wide_resnet", "--config.model.options.dropout_rate", "0.5"],
            "wide_resnet",
            MODELS.options("wide_resnet") | {"dropout_rate": 0.5},
        ),
        (
            ["--config.model.name=mlp", "--config.model.options.hidden=(3,)"],
            "mlp",
            {"hidden": (3,)},
        ),
    ],
    ids=str,
)
def test_options_are_those_of_the_model_that_flags_name(monkeypatch, arguments, name, options):
    config = config_of_flags(monkeypatch, DIGITS, *arguments)
    assert (config.model.name, config.model.options.to_dict()) == (name, options)
    assert config.is_locked


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (
            ["--config.local.optimizer=adam", "--config.local.options.beta_1=0.5"],
            "local.options",
            OPTIMIZERS.options("adam") | {"beta_1": 0.5},
        ),
        (
            ["--config.server.optimizer=yogi", "--config.server.options.epsilon=1"],
            "server.options",
            OPTIMIZERS.options("yogi") | {"epsilon": 1.0},
        ),
        (
            ["--config.aggregator.name=robust", "--noconfig.aggregator.options.zeroing"],
            "aggregator.options",
            {"zeroing": False, "clipping": True},
        ),
        (
            ["--config.algorithm.name=fedprox", "--config.algorithm.mu=0.5"],
            "algorithm",
            {"name": "fedprox"} | hyperparameters("fedprox") | {"mu": 0.5},
        ),
        (
            ["--config.data.partitioner=iid", "--config.data.dirichlet.alpha=1"],
            "data.dirichlet.alpha",
            1.0,
        ),
        (["--config.attack.client_ids=(1,)"], "attack.client_ids", (1,)),
    ],
    ids=str,
)
def test_options_of_all_that_is_chosen_are_flags(monkeypatch, arguments, key, value):
    found = value_of(config_of_flags(monkeypatch, DIGITS, *arguments), key)
    assert getattr(found, "to_dict", lambda: found)() == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config.model.name=resnet18", "--config.model.options.hidden=(4,)"],
            "Unknown config key 'hidden'. Valid: 'blocks', 'groups', 'stem', 'width'.",
        ),
        (
            ["--config.model.options.width=16"],
            "Unknown config key 'width'. Valid: 'hidden'.",
        ),
        (
            ["--config.server.optimizer=sgd", "--config.server.options.momentum=0.9"],
            "Unknown config key 'server.options.momentum'. There is config.server.momentum.",
        ),
        (
            ["--config.learning_rate=1"],
            "Unknown config key 'learning_rate'. There is config.local.learning_rate.",
        ),
        (
            ["--config.model.name=lennet", "--config.model.options.width=16"],
            "Unknown model 'lennet'. Did you mean 'lenet'?",
        ),
    ],
)
def test_options_of_another_model_are_not_dropped(monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, DIGITS, *arguments)
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_a_config_of_comparisons_lists_them(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, f"--config={ROOT / 'configs' / 'pgfed.py'}")
    assert capsys.readouterr().err.startswith(
        f"error: flag --config={ROOT / 'configs' / 'pgfed.py'}: After the colon comes "
        "DATASET,CLIENTS,METHOD, found ''.\n  DATASET: cifar10, cifar100\n  CLIENTS: 25, 50, 100\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def get_config():\n    return {}['a']", "the file fails: KeyError: 'a' ({}, line 2)"),
        ("def get_config():\n    return a", "NameError: name 'a' is not defined ({}, line 2)"),
        ("def get_config(:", "the file fails: SyntaxError: invalid syntax (wrong.py, line 1)"),
        ("a = 1", "AttributeError: module 'config_config' has no attribute 'get_config'\n"),
        ("def get_config():\n    pass", "get_config() of {} must return a config"),
        ("def get_config():\n    return 3", "such as default_config(...), but it returned 3."),
    ],
)
def test_a_file_that_fails_says_where(monkeypatch, capsys, tmp_path, content, message):
    path = tmp_path / "wrong.py"
    path.write_text(content)
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, f"--config={path}")
    printed = capsys.readouterr().err
    assert message.format(path) in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("steps", "None", None),
        ("steps", "7", 7),
        ("rate", "None", None),
        ("rate", "0.5", 0.5),
        ("limit", "None", None),
        ("limit", "2.0", 2.0),
    ],
)
def test_flags_for_numbers_take_none(parse, key, text, value):
    assert parse(f"--config.{key}={text}")[key] == value


def test_a_flag_that_is_neither_a_number_nor_none(parse, capsys):
    with pytest.raises(SystemExit):
        parse("--config.steps=no")
    assert "flag --config.steps=no: invalid literal for int()" in capsys.readouterr().err


MODULE = """
from tff_pfl.algorithms import ALGORITHMS, fedavg
from tff_pfl.templates import extends

@ALGORITHMS.register("fedavg_of_a_user")
@extends(fedavg)
def method(model, local, *, share=0.5, **options):
    return fedavg(model, local, **options)
"""


def test_modules_that_flags_name_are_there_before_the_config(monkeypatch, tmp_path):
    (tmp_path / "method_of_a_user.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    config = config_of_flags(
        monkeypatch,
        f"{DIGITS}:fedavg_of_a_user",
        "--config.imports=method_of_a_user",
        "--config.algorithm.share=0.7",
    )
    assert config.algorithm.to_dict() == {
        "name": "fedavg_of_a_user",
        "share": 0.7,
        "personalized": "global",
        "weighting": "num_examples",
    }
    assert config.imports == ("method_of_a_user",)
    assert config.import_path == (str(ROOT / "configs"), str(tmp_path))


def test_a_module_is_looked_for_where_the_flags_say(monkeypatch, tmp_path):
    (tmp_path / "module_elsewhere.py").write_text("LOADED = True\n")
    flags = ("--config.imports=module_elsewhere", f"--config.import_path={tmp_path}")
    config = config_of_flags(monkeypatch, DIGITS, *flags)
    assert config.import_path == (str(tmp_path),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nobody", "No module named 'nobody'"),
        (
            "from tff_pfl.experiment import default_config\n"
            "def get_config(): return default_config(imports=['nobody'])",
            "config.imports: there is no module 'nobody' in {folder}, ",
        ),
    ],
)
def test_modules_that_are_not_there(monkeypatch, tmp_path, capsys, text, message):
    (tmp_path / "config_of_a_user.py").write_text(text)
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, f"--config={tmp_path / 'config_of_a_user.py'}")
    printed = capsys.readouterr().err
    assert message.format(folder=tmp_path) in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("has_own_keys_alone", [False, True])
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("config.seeds=3", "Unknown config key 'seeds'. Did you mean 'seed'? Valid: 'aggregator'"),
        ("config.new_clients.epoch=3", "Unknown config key 'epoch'. Did you mean 'best_epoch'?"),
        (
            "config.data.alpha=0.5",
            "Unknown config key 'data.alpha'. There is config.data.dirichlet.",
        ),
        ("config.data.fractoins=(1,)", "Unknown config key 'fractoins'. Did you mean 'fractions'?"),
        ("config.local.batch_size=big", "--config.local.batch_size=big: invalid literal for int()"),
        ("config.data.merge=perhaps", "--config.data.merge=perhaps: ('Non-boolean argument to"),
    ],
)
def test_mistakes_are_answered_alike_with_and_without_the_file(
    monkeypatch, capsys, has_own_keys_alone, flag, message
):
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
    argv = ["program", DIGITS, f"--{flag}"]
    config_flags.DEFINE_config_file("config", flag_values=flags.FLAGS, sys_argv=argv)
    with pytest.raises(SystemExit):
        parse_flags(argv, has_own_keys_alone=has_own_keys_alone)
    assert message in capsys.readouterr().err

"""Tests the flags of programs, including those of a config and its keys."""

import pytest

from tests.own_modules import own_modules
from tests.runs import ROOT, config_of_flags
from tff_pfl.config.options import value_of
from tff_pfl.models import MODELS


@pytest.fixture(autouse=True)
def forget_the_folders_of_configs(tmp_path):
    with own_modules(tmp_path):
        yield


DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["--config.model.name=resnet18", "--config.model.name", "lenet"], "model.options", {}),
        (
            ["--config.model.options.width", "16", "--config.model.name=resnet18"],
            "model.options",
            MODELS.options("resnet18") | {"width": 16},
        ),
        (
            ["--config.aggregator.name=robust", "--noconfig.aggregator.options.zeroing"],
            "aggregator.options",
            {"zeroing": False, "clipping": True},
        ),
    ],
    ids=str,
)
def test_options_belong_to_the_choices_of_flags(monkeypatch, arguments, key, value):
    config = config_of_flags(monkeypatch, DIGITS, *arguments)
    assert value_of(config, key).to_dict() == value
    assert config.is_locked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([DIGITS, "--no_such_flag=1"], "error: Unknown command line flag 'no_such_flag'"),
        ([DIGITS, "--config.seeds=3"], "Unknown config key 'seeds'. Did you mean \"seed\""),
        ([DIGITS, "--config.model.name=lennet"], "Unknown model 'lennet'"),
        ([DIGITS, "--config.local.batch_size=big"], "--config.local.batch_size=big: invalid lit"),
        (
            [DIGITS, "--config.algorithm.lambda=1"],
            "a word of Python. Did you mean 'algorithm.lambd",
        ),
        (["--config=no.py"], "No such file or directory: 'no.py'"),
        (["--config=wrong.py"], "wrong.py, line 2)"),
        (["--config=number.py"], "such as default_config(...), but it returned 3."),
    ],
)
def test_mistakes_print_one_message(monkeypatch, capsys, tmp_path, arguments, message):
    (tmp_path / "wrong.py").write_text("def get_config():\n    return {}['a']")
    (tmp_path / "number.py").write_text("def get_config():\n    return 3")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        config_of_flags(monkeypatch, *arguments)
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_flags_for_numbers_accept_none(monkeypatch):
    flags = ("--config.local.clip_norm=2.0", "--config.local.steps=7")
    local = config_of_flags(monkeypatch, DIGITS, *flags).local
    assert (local.clip_norm, local.steps) == (2.0, 7)
    flags = ("--config.local.clip_norm=None", "--config.local.steps=None")
    local = config_of_flags(monkeypatch, DIGITS, *flags).local
    assert (local.clip_norm, local.steps) == (None, None)


MODULE = """
from tff_pfl.algorithms import ALGORITHMS, fedavg
from tff_pfl.arguments.extension import extends

@ALGORITHMS.register("fedavg_of_a_user")
@extends(fedavg)
def method(model, local, *, share=0.5, **options):
    return fedavg(model, local, **options)
"""


def test_modules_of_flags_are_imported_before_the_config(monkeypatch, tmp_path):
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


def test_modules_are_searched_in_the_folders_of_flags(monkeypatch, tmp_path):
    (tmp_path / "module_elsewhere.py").write_text("LOADED = True\n")
    flags = ("--config.imports=module_elsewhere", f"--config.import_path={tmp_path}")
    config = config_of_flags(monkeypatch, DIGITS, *flags)
    assert config.import_path == (str(tmp_path),)

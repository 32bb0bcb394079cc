"""`run_program` in one process; `tests/programs/test_train.py` runs it as a user does."""

import json
import os
import signal

import pytest
from absl import flags
from ml_collections import config_flags

from tests.runs import ROOT, tiny_config
from tff_pfl import models, runtime
from tff_pfl.experiment import check_config, evaluate_program, parse_flags, run_program
from tff_pfl.experiment.interruption import Terminated, interruptible


@pytest.fixture(autouse=True)
def keep_the_context_of_the_tests(monkeypatch):
    monkeypatch.setattr(runtime, "set_cpp_context", lambda: None, raising=False)


def test_mistakes_are_one_message_and_leave_nothing(tmp_path, capsys):
    assert run_program(tiny_config(clients_per_round=5), str(tmp_path / "run")) == 1
    assert capsys.readouterr().err == (
        "error: config.clients_per_round=5, but the federation has only 4 clients that train. "
        "Choose 1 to 4.\n"
    )
    assert not os.path.exists(tmp_path / "run")


def test_missing_data_says_what_to_pass(tmp_path, capsys, monkeypatch):
    from tff_pfl import data

    def not_found(name, data_dir):
        raise data.DataNotFoundError(f"{name} is not in {data_dir}: pass data_dir")

    monkeypatch.setattr(data, "load", not_found)
    assert run_program(tiny_config(), str(tmp_path / "run")) == 1
    assert capsys.readouterr().err.startswith("error: digits is not in None")


def test_a_run_its_files_and_its_repetition(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(), path) == 0
    printed = capsys.readouterr().out
    assert f"results: {path}" in printed
    assert run_program(tiny_config(), path) == 1
    assert "holds a run already" in capsys.readouterr().err
    assert run_program(tiny_config(), path, resume=True) == 0
    assert capsys.readouterr().out.strip() == printed[printed.index("ditto on digits") :].strip()
    capsys.readouterr()
    assert run_program(tiny_config(seed=1), path, resume=True) == 1
    assert "seed: 0 then, 1 now" in capsys.readouterr().err
    assert run_program(tiny_config(seed=1), path, overwrite=True) == 0
    assert capsys.readouterr().out != printed
    with open(os.path.join(path, "config.json")) as file:
        assert json.load(file)["seed"] == 1


def test_a_run_that_is_over_is_not_evaluated_anew(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(rounds=1), path) == 0
    capsys.readouterr()
    assert run_program(tiny_config(rounds=1, checkpoint_every=2), path, resume=True) == 0
    assert capsys.readouterr().err == ""
    other = tiny_config(rounds=1, evaluation={"generalization": "last", "synthetic": (0.1,)})
    assert run_program(other, path, resume=True) == 0
    assert capsys.readouterr().err == (
        "note: the run was over, its results are those of then, without\n"
        "  evaluation.generalization: 'never' then, 'last' now\n"
        "  evaluation.synthetic.0: 0.5 then, 0.1 now\n"
        f"programs/evaluate.py --run_dir={path} evaluates it with other settings.\n"
    )


def test_metrics_that_were_lost_are_not_written_on(tmp_path, capsys):
    path = tmp_path / "run"
    assert run_program(tiny_config(), str(path)) == 0
    file = path / "metrics.csv"
    header, first, second = file.read_text().splitlines(keepends=True)
    for left in (None, header + first, header + first + second[:9], header + second):
        file.unlink()
        if left is not None:
            file.write_text(left)
        assert run_program(tiny_config(rounds=3), str(path), resume=True) == 1
        assert str(file) in capsys.readouterr().err
        file.write_text("")


def test_files_and_folders_that_cannot_be_had(tmp_path, capsys):
    config = tiny_config()
    config.data.partition_file = str(tmp_path / "no.npz")
    assert run_program(config, str(tmp_path / "run")) == 1
    assert "no.npz" in capsys.readouterr().err
    assert run_program(tiny_config(), "/proc/run") == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_say_how_to_go_on(tmp_path, capsys, monkeypatch, number, code):
    monkeypatch.setattr(runtime, "current_devices", lambda: os.kill(os.getpid(), number))
    path = tmp_path / "run"
    for _ in range(2):
        assert run_program(tiny_config(), str(path), set_context=lambda: None) == code
    message = f"\ninterrupted; --resume goes on with the run in {path}\n"
    assert capsys.readouterr().err == message * 2
    output = str(tmp_path / "out")
    assert evaluate_program(str(path), output, set_context=runtime.current_devices) == code
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_a_further_signal_ends_the_process_at_once():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Terminated), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_that_are_ignored_stay_so(monkeypatch):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


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


def load(monkeypatch, *argv):
    """The config of flags, as a program parses them."""
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
    argv = ["program", *argv]
    config_flags.DEFINE_config_file("config", flag_values=flags.FLAGS, sys_argv=argv)
    parse_flags(argv)
    check_config(flags.FLAGS.config)
    return flags.FLAGS.config


DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


@pytest.mark.parametrize(
    ("arguments", "name", "options"),
    [
        ([], "mlp", {"hidden": (64,)}),
        (["--config.model.name=mlp"], "mlp", {"hidden": (64,)}),
        (["--config.model.name=resnet18"], "resnet18", {}),
        (["--config.model.name=lenet", "--config.model.name", "resnet18"], "resnet18", {}),
        (
            ["--config.model.options.width=16", "--config.model.name=resnet18"],
            "resnet18",
            models.options("resnet18") | {"width": 16},
        ),
        (
            ["--config.model.name=wide_resnet", "--config.model.options.dropout_rate", "0.5"],
            "wide_resnet",
            models.options("wide_resnet") | {"dropout_rate": 0.5},
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
    config = load(monkeypatch, DIGITS, *arguments)
    assert config.model.to_dict() == {"name": name, "options": options}
    assert config.is_locked


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
            ["--config.model.name=lennet", "--config.model.options.width=16"],
            "Unknown model 'lennet'. Did you mean 'lenet'?",
        ),
    ],
)
def test_options_of_another_model_are_not_dropped(monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit):
        load(monkeypatch, DIGITS, *arguments)
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_a_config_of_comparisons_lists_them(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        load(monkeypatch, f"--config={ROOT / 'configs' / 'pgfed.py'}")
    assert capsys.readouterr().err.startswith(
        f"error: flag --config={ROOT / 'configs' / 'pgfed.py'}: After the colon comes "
        "DATASET,CLIENTS,METHOD, found ''.\n  DATASET: cifar10, cifar100\n  CLIENTS: 25, 50, 100\n"
    )


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

"""Tests that evaluations of configs refuse wrong directories and options."""

import functools
import shutil
import unittest.mock

import pytest

from tests.marks import together
from tests.runs import tiny_config, with_settings
from tff_pfl.clients import ClientStateStore
from tff_pfl.config import ConfigError, evaluate_program, run_of, run_program
from tff_pfl.experiment import OutputDirectoryError


def damaged(run, path):
    shutil.copytree(run, path)
    (path / "config.json").write_text('{"seed": ')


def without_commits(run, path):
    shutil.copytree(run, path)
    shutil.rmtree(path / "checkpoint")
    (path / "checkpoint").mkdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run, path: None, "wrong has no config.json of a run."),
        (with_settings(lambda it: it.pop("algorithm")), "was made in Python, not by names alone"),
        (with_settings(lambda it: it.update(round=3)), "not a config of this version: Unknown"),
        (with_settings(lambda it: it.pop("local")), "wrong is a run of something else: "),
        (damaged, "config.json is damaged: "),
        (without_commits, "wrong has no checkpoint of a run."),
    ],
)
def test_mistakes_print_one_message(finished_run, tmp_path, capsys, make, message):
    make(finished_run(), tmp_path / "wrong")
    capsys.readouterr()  # discards the output of the run
    output = tmp_path / "out" / "result"
    code = evaluate_program(str(tmp_path / "wrong"), str(output))
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert not output.parent.exists()


def test_run_without_a_committed_round_is_refused(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientStateStore, "commit", unittest.mock.Mock(side_effect=OSError))
        code = run_program(tiny_config(), str(tmp_path / "run"))
    assert code == 1
    with pytest.raises(OutputDirectoryError, match="run: no round was committed."):
        run_of(tmp_path / "run").evaluate()


@together(
    ("options", "message"),
    [
        ({"synthetic": ("2.0",)}, "config.evaluation.synthetic must be a sequence"),
        ({"synthetic": ("half",)}, "config.evaluation: could not convert string to float: 'half'"),
        ({"fine_tune_epochs": 2.5}, "config.evaluation: Could not override field 'fine_tune_epoc"),
        ({"fine_tune_epoch": 1}, "Unknown config key 'fine_tune_epoch'"),
        ({"clients": 5}, "config.evaluation: clients=5"),
    ],
)
def test_impossible_options_are_refused(finished_run, options, message):
    with pytest.raises(ConfigError, match=message):
        run_of(finished_run(), options)


def test_change_without_effect_logs_a_warning(finished_run, caplog):
    changes = {"fine_tune_learning_rate": 0.1, "subsample": True, "split": "test"}
    run_of(finished_run(), changes)
    idle = [text.partition(": ")[2] for text in caplog.messages if "no effect" in text]
    assert sorted(idle) == [
        "config.evaluation.fine_tune_learning_rate has no effect: "
        "config.evaluation.fine_tune_epochs is 0.",
        "config.evaluation.subsample has no effect: config.evaluation.generalization is 'never'.",
    ]


def test_unwritable_output_is_refused_before_computing(finished_run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    other = tmp_path / "other"
    shutil.copytree(run := finished_run(), other)
    for output, message in {
        tmp_path / "file" / "x": f"x cannot be written: {tmp_path / 'file'} is a file.",
        run / "metrics": f"output='{run / 'metrics'}': {run}",
        run / "clients" / "mine": f"output='{run / 'clients' / 'mine'}': {run}",
        other / "summary": f"output='{other / 'summary'}': {other}",
    }.items():
        computes = functools.partial(pytest.fail, "computes")
        assert evaluate_program(str(run), str(output), set_context=computes) == 1
        assert f"error: {message}" in capsys.readouterr().err.replace(f"{tmp_path}/file/x", "x")


def test_results_are_printed_even_if_they_cannot_be_written(finished_run, tmp_path, capsys):
    (tmp_path / "x.json").mkdir()
    output = str(tmp_path / "x")
    assert evaluate_program(str(finished_run()), output) == 1
    printed = capsys.readouterr()
    assert "over clients: personalized/local_test/accuracy" in printed.out
    assert "results:" not in printed.out
    assert printed.err.startswith("error: ") and "x.json" in printed.err

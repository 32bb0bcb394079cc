"""Tests the bodies of programs in this process; `tests/programs` runs the programs."""

import json
import os
import pathlib
import shutil

import pytest

from tests.experiment.killed import contents_of
from tests.runs import tiny_config
from tff_pfl import runtime
from tff_pfl.config import run_program
from tff_pfl.experiment.rounds import Rounds
from tff_pfl.experiment.summary import read_summary


def test_mistakes_print_one_message_and_create_no_directory(tmp_path, capsys):
    assert run_program(tiny_config(clients_per_round=5), str(tmp_path / "run")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: config.clients_per_round: A cohort of 5 clients ")
    assert not os.path.exists(tmp_path / "run")


def lost():
    raise runtime.WorkerDiedError("The worker at a:1 does not answer.")


@pytest.mark.thorough
def test_lost_worker_has_its_own_exit_code(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(), path, set_context=lost) == os.EX_TEMPFAIL
    assert capsys.readouterr().err == (
        f"error: The worker at a:1 does not answer.\npass --resume to continue the run in {path}\n"
    )
    assert run_program(tiny_config(), path, resume=True) == 0


@pytest.fixture
def finished(finished_run, tmp_path, capsys):
    """Returns the path of a copy of a finished run of `tiny_config`."""
    path = shutil.copytree(finished_run(), tmp_path / "run")
    capsys.readouterr()
    return str(path)


@pytest.mark.thorough
def test_run_to_overwrite_is_not_resumed_before_it_is_deleted(finished, capsys):
    path, resumed = finished, []
    options = {"overwrite": True, "restart": resumed.append}
    longer = tiny_config(rounds=3)
    assert run_program(longer, path, set_context=lost, **options) == os.EX_TEMPFAIL
    assert capsys.readouterr().err.endswith(
        f"no run was started, and the run in {path} was not changed\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "run", lambda *_, **__: lost())
        assert run_program(longer, path, **options) == os.EX_TEMPFAIL
    assert capsys.readouterr().err.endswith(f"pass --resume to continue the run in {path}\n")
    assert resumed == [False, True]


@pytest.mark.thorough
def test_resumed_run_is_not_finished_until_its_end(tmp_path, capsys):
    """Checks that the summary is deleted, and that finished rounds stay."""
    path = str(tmp_path / "run")
    assert run_program(tiny_config(rounds=1), path) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "finish_round", raise_interrupt_in_round(3))
        assert run_program(tiny_config(rounds=4), path, resume=True) == 130
    assert read_summary(path) is None
    assert run_program(tiny_config(rounds=1), path, resume=True) == 1
    assert "has done 2 rounds already, but rounds=1." in capsys.readouterr().err
    assert run_program(tiny_config(rounds=4), path, resume=True) == 0
    assert read_summary(path).final.round_num == 4


def raise_interrupt_in_round(number):
    original = Rounds.finish_round

    def finish_round(self, watch):
        if self.progress.round_num == number:
            raise KeyboardInterrupt
        original(self, watch)

    return finish_round


@pytest.mark.thorough
def test_finished_run_is_printed_again_but_not_changed(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(), path) == 0
    printed = capsys.readouterr().out
    assert f"results: {path}" in printed
    assert run_program(tiny_config(), path) == 1
    assert "already contains a run" in capsys.readouterr().err
    assert run_program(tiny_config(), path, resume=True) == 0
    assert capsys.readouterr().out.strip() == printed[printed.index("ditto on digits") :].strip()
    other = tiny_config(evaluation={"every": 1})
    assert run_program(other, path, overwrite=True) == 0
    assert capsys.readouterr().out != printed
    with open(os.path.join(path, "config.json")) as file:
        assert json.load(file)["evaluation"]["every"] == 1


def test_finished_run_is_not_evaluated_again(finished, capsys):
    path = finished
    assert run_program(tiny_config(checkpoint_every=2), path, resume=True) == 0
    note = "note: the run was finished before; its result is shown again\n"
    assert capsys.readouterr().err == note
    other = tiny_config(evaluation={"generalization": "last", "synthetic": (0.1,)})
    assert run_program(other, path, resume=True) == 0
    assert capsys.readouterr().err == (
        "note: the run was finished already, and its results ignore these changes:\n"
        "  evaluation.generalization: 'never' then, 'last' now\n"
        "  evaluation.synthetic.0: 0.5 then, 0.1 now\n"
        f"programs/evaluate.py --run_dir={path} evaluates it again.\n"
    )


@pytest.mark.thorough
def test_refused_config_does_not_delete_the_run_to_overwrite(finished, capsys):
    before = contents_of(pathlib.Path(finished))
    config = tiny_config("ifca", new_clients={"number": 1})
    config.algorithm.fixed_clusters = (0, 1, 0)
    assert run_program(config, finished, overwrite=True) == 1
    assert "this algorithm has none" in capsys.readouterr().err
    assert contents_of(pathlib.Path(finished)) == before

"""Tests `run_program` in this process; `tests/programs/test_train.py` runs the program."""

import json
import os
import signal

import numpy as np
import pytest
from tff_pfl.config.run import suitable_capacity

from tests.experiment.killed import contents_of
from tests.marks import together
from tests.runs import tiny_config, train_run
from tff_pfl import data, experiment, models, runtime
from tff_pfl.clients import Ladder
from tff_pfl.config.interruption import Terminated, interruptible
from tff_pfl.experiment import evaluate_program, program, run_program
from tff_pfl.experiment.rounds import Rounds
from tff_pfl.experiment.summary import read_summary


def test_mistakes_print_one_message_and_create_no_directory(tmp_path, capsys):
    assert run_program(tiny_config(clients_per_round=5), str(tmp_path / "run")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: config.clients_per_round: A cohort of 5 clients ")
    assert not os.path.exists(tmp_path / "run")


LINEAR, CNN = ("mlp", {"hidden": ()}), ("lenet", {})


@together(
    ("network", "sizes", "clients", "batch_size", "expected"),
    [
        (LINEAR, [12, 16, 25], 40, 20, Ladder(20)),
        (LINEAR, [12, 16, 25], 10, 20, None),  # too few clients
        (LINEAR, [1, 21, 41, 61, 81], 40, 20, Ladder(20)),  # in two groups
        (LINEAR, [1, 201, 401, 601, 801], 40, 20, None),  # too many groups
        (LINEAR, [60, 70, 80], 40, 70, None),  # too large steps
        (LINEAR, [1, 5], 40, 100, Ladder(6)),  # no client fills a batch
        (CNN, [12, 16, 20], 40, 20, None),
    ],
)
def test_clients_are_grouped_if_that_is_faster(network, sizes, clients, batch_size, expected):
    name, options = network
    model = models.build(name, (28, 28, 1), 10, **options)
    nobody = np.zeros([0, 1], np.float32), np.zeros([0], np.int32)
    dataset = data.FederatedDataset.from_client_arrays(
        [(np.zeros([n, 1], np.float32), np.zeros(n, np.int32), *nobody) for n in 20 * sizes],
        num_classes=10,
    )
    assert suitable_capacity(model, dataset, clients, batch_size) == expected


def lost():
    raise runtime.WorkerDiedError("The worker at a:1 does not answer.")


def test_lost_worker_has_its_own_exit_code(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(), path, set_context=lost) == os.EX_TEMPFAIL
    assert capsys.readouterr().err == (
        f"error: The worker at a:1 does not answer.\npass --resume to continue the run in {path}\n"
    )
    assert run_program(tiny_config(), path, resume=True) == 0


def test_run_to_overwrite_is_not_resumed_before_it_is_deleted(tmp_path, capsys):
    path, resumed = str(tmp_path / "run"), []
    assert run_program(tiny_config(), path) == 0
    options = {"overwrite": True, "restart": resumed.append}
    longer = tiny_config(rounds=3)
    assert run_program(longer, path, set_context=lost, **options) == os.EX_TEMPFAIL
    assert capsys.readouterr().err.endswith(
        f"no run was started, and the run in {path} was not changed\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "train", lambda *_, **__: lost())
        assert run_program(longer, path, **options) == os.EX_TEMPFAIL
    assert capsys.readouterr().err.endswith(f"pass --resume to continue the run in {path}\n")
    assert resumed == [False, True]


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


def test_finished_run_is_printed_again_but_not_changed(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(), path) == 0
    printed = capsys.readouterr().out
    assert f"results: {path}" in printed
    assert run_program(tiny_config(), path) == 1
    assert "already contains a run" in capsys.readouterr().err
    assert run_program(tiny_config(), path, resume=True) == 0
    assert capsys.readouterr().out.strip() == printed[printed.index("ditto on digits") :].strip()
    other = tiny_config(data={"dirichlet": {"alpha": 1.0}})
    assert run_program(other, path, resume=True) == 1
    assert "data.dirichlet.alpha: 0.3 then, 1.0 now" in capsys.readouterr().err
    assert run_program(other, path, overwrite=True) == 0
    assert capsys.readouterr().out != printed
    with open(os.path.join(path, "config.json")) as file:
        assert json.load(file)["data"]["dirichlet"]["alpha"] == 1.0


def test_finished_run_is_not_evaluated_again(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert run_program(tiny_config(rounds=1), path) == 0
    capsys.readouterr()
    assert run_program(tiny_config(rounds=1, checkpoint_every=2), path, resume=True) == 0
    note = "note: the run was finished before; its result is shown again\n"
    assert capsys.readouterr().err == note
    other = tiny_config(rounds=1, evaluation={"generalization": "last", "synthetic": (0.1,)})
    assert run_program(other, path, resume=True) == 0
    assert capsys.readouterr().err == (
        "note: the run was finished already, and its results ignore these changes:\n"
        "  evaluation.generalization: 'never' then, 'last' now\n"
        "  evaluation.synthetic.0: 0.5 then, 0.1 now\n"
        f"programs/evaluate.py --run_dir={path} evaluates it again.\n"
    )


def test_signal_prints_how_to_resume(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runtime, "current_devices", lambda: os.kill(os.getpid(), signal.SIGTERM))
    path = tmp_path / "run"
    for _ in range(2):
        assert run_program(tiny_config(), str(path)) == 143
    message = f"\ninterrupted; pass --resume to continue the run in {path}\n"
    assert capsys.readouterr().err == message * 2
    path.mkdir()
    (path / "config.json").write_text("{}")
    output = str(tmp_path / "out")
    assert evaluate_program(str(path), output, set_context=runtime.current_devices) == 143
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(28, "No space left on device", "a.csv"), 1, "error: [Errno 28] No space left"),
        (ZeroDivisionError("of a program"), 1, "error: of a program\n"),
        (Terminated(), 143, "\ninterrupted; do it again\n"),
    ],
)
def test_exit_code_of_ends_any_program(capsys, error, code, message):
    def fail():
        raise error

    options = {"errors": [ZeroDivisionError], "advice": lambda: "do it again"}
    assert experiment.exit_code_of(fail, **options) == code
    assert capsys.readouterr().err.startswith(message)


def test_second_signal_ends_the_process_at_once():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Terminated), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_refused_config_does_not_delete_the_run_to_overwrite(tmp_path, capsys):
    path = train_run(tmp_path / "run", tiny_config())
    before = contents_of(path)
    config = tiny_config("ifca", new_clients={"number": 1})
    config.algorithm.fixed_clusters = (0, 1, 0)
    assert run_program(config, str(path), overwrite=True) == 1
    assert "this algorithm has none" in capsys.readouterr().err
    assert contents_of(path) == before

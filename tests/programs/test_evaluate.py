"""Tests the command line of `evaluate.py`."""

import csv
import json

import pytest

from tests.marks import slow
from tests.runs import run_main, run_python, tiny_config, train_run

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, clients_in_a_loop):
    return train_run(tmp_path_factory.mktemp("runs") / "run", tiny_config(evaluation={"every": 1}))


@pytest.mark.thorough
@pytest.mark.parametrize("run", [run_main, slow(run_python)])
def test_program_writes_results_and_prints_tables(run_dir, tmp_path, run):
    """Runs the program in this process, or in its own one."""
    output = tmp_path / "evaluated"
    done = run(
        "programs/evaluate.py",
        f"--run_dir={run_dir}",
        f"--output={output}",
        "--synthetic=0,0.5",
        "--subsample",
        "--fine_tune_epochs=2",
        "--fine_tune_learning_rate=0.05",
        "--further_models=fine_tuned",
        f"--baseline={run_dir}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "round 2 of ditto on digits"
    assert lines[-1] == f"results: {output}.json, {output}_table.csv, {output}.csv"
    result = json.loads(output.with_suffix(".json").read_text())
    given = {"subsample": True, "fine_tune_epochs": 2, "fine_tune_learning_rate": 0.05}
    assert result["options"].items() >= given.items()
    assert result["baseline"]["run"] == "ditto on digits"
    final = json.loads((run_dir / "summary.json").read_text())["final"]["metrics"]
    with open(output.with_suffix(".csv"), newline="") as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 4
    own = "personalized/local_test/loss_mean"
    for name in (own, "global/local_test/accuracy_mean"):
        assert result["metrics"][name] == pytest.approx(final[name])
    assert result["metrics"]["fine_tuned/local_test/loss_mean"] < final[own] - 0.01
    for model in ("personalized", "fine_tuned", "global"):
        for pool in ("local_test", "synthetic0_test", "synthetic50_test", "generalization_test"):
            assert any(line.strip().startswith(f"{model}/{pool}/accuracy") for line in lines)
            for client in clients:
                right = float(client[f"{model}/{pool}/accuracy"]) * int(client["num_examples"])
                assert right == pytest.approx(round(right))  # each pool has as many examples


@pytest.mark.thorough
def test_nogeneralization_leaves_out_other_clients(run_dir, tmp_path):
    output = tmp_path / "evaluated"
    flags = (f"--run_dir={run_dir}", f"--output={output}", "--nogeneralization")
    done = run_main("evaluate.py", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    metrics = json.loads(output.with_suffix(".json").read_text())["metrics"]
    assert {name.split("/")[1] for name in metrics if "/" in name} == {"local_test"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run_dir=RUN", "--synthetic=0.5,1.5"], "config.evaluation.synthetic must be"),
        (["--run_dir=run", "--split=train"], "flag --split=train: value should be"),
        ([], "Flag --run_dir must have a value"),
        (["--run_dir=RUN", "--output=x/"], "x/ is a folder. Add a name for the files: x/NAME."),
    ],
)
def test_mistakes_print_one_message(run_dir, tmp_path, flags, message):
    flags = [flag.replace("RUN", str(run_dir)) for flag in flags]
    done = run_main("evaluate.py", f"--output={tmp_path / 'evaluated'}", *flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

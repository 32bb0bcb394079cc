"""The programs that look at runs, by their command lines."""

import csv
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.documents import flags_of, subcommands_of_report
from tests.marks import slow
from tests.runs import ROOT, run_main, run_python, tiny_config, train_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("runs") / "run", tiny_config(evaluation={"every": 1}))


def run_process(program, *arguments):
    return run_python(f"programs/{program}", *arguments)


@pytest.mark.parametrize("run_evaluate", [run_process, slow(run_main)])
def test_evaluate(run_dir, tmp_path, run_evaluate):
    output = tmp_path / "evaluated"
    done = run_evaluate(
        "evaluate.py",
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
    assert result["options"]["subsample"] is True
    assert result["options"]["fine_tune_epochs"] == 2
    assert result["options"]["fine_tune_learning_rate"] == 0.05
    assert result["baseline"]["run"] == "ditto on digits"
    final = json.loads((run_dir / "summary.json").read_text())["final"]["metrics"]
    with open(output.with_suffix(".csv"), newline="") as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 4
    name = "global/local_test/accuracy_mean"
    assert result["metrics"][name] == pytest.approx(final[name])
    own = "personalized/local_test/loss_mean"
    assert result["metrics"][own] == pytest.approx(final[own])
    assert result["metrics"]["fine_tuned/local_test/loss_mean"] < final[own] - 0.01
    for model in ("personalized", "fine_tuned", "global"):
        for pool in ("local_test", "synthetic0_test", "synthetic50_test", "generalization_test"):
            assert any(line.strip().startswith(f"{model}/{pool}/accuracy") for line in lines)
            for client in clients:
                right = float(client[f"{model}/{pool}/accuracy"]) * int(client["num_examples"])
                assert right == pytest.approx(round(right))  # of as many examples in each pool


def test_evaluate_without_other_clients(run_dir, tmp_path):
    output = tmp_path / "evaluated"
    done = run_main(
        "evaluate.py", f"--run_dir={run_dir}", f"--output={output}", "--nogeneralization"
    )
    assert (done.returncode, done.stderr) == (0, "")
    metrics = json.loads(output.with_suffix(".json").read_text())["metrics"]
    final = json.loads((run_dir / "summary.json").read_text())["final"]["metrics"]
    pools = {name.split("/")[1] for name in metrics if "/" in name}
    assert pools == {"local_test"}
    name = "personalized/local_test/accuracy_mean"
    assert metrics[name] == pytest.approx(final[name])


def test_report(run_dir, tmp_path):
    path = tmp_path / "curves.png"
    done = run_main(
        "report.py",
        "curves",
        run_dir,
        f"the same:{run_dir}",
        f"--output={path}",
        "--column=global/local_test/loss",
        "--exclude_clients=1,3",
        "--log_scale",
        "--top=5",
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 5000


def test_report_draws_histograms(run_dir, tmp_path):
    path = tmp_path / "histogram.png"
    done = run_main(
        "report.py",
        "histogram",
        f"a run:{run_dir}",
        f"the same:{run_dir}",
        f"--output={path}",
        "--column=global/local_test/accuracy",
        "--exclude_clients=2",
        "--threshold=0.3",
        "--round=1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    with open(run_dir / "clients" / "round_000001.csv", newline="") as file:
        values = [float(client["global/local_test/accuracy"]) for client in csv.DictReader(file)]
    values.pop(2)
    header, *rows = done.stdout.splitlines()
    assert " ".join(header.split()) == "round clients mean lowest 5 % top 5 % below 0.3"
    for name, row in zip(("a run", "the same"), rows, strict=True):
        numbers = [sum(values) / 3, min(values), max(values)]
        share = 100 * sum(value < 0.3 for value in values) / 3
        cells = ["1", "3", *(f"{number:.4f}" for number in numbers), f"{share:.1f}", "%"]
        assert row.split() == [*name.split(), *cells]
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 5000


def test_report_draws_loss_surfaces(run_dir, tmp_path):
    path = tmp_path / "new" / "surface.png"
    done = run_main(
        "report.py",
        "loss_surface",
        run_dir,
        f"--output={path}",
        "--client=1",
        "--points=3",
        "--radius=0.5",
        "--examples=20",
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == (f"numbers: {path.with_suffix('.npz')}\n", "")
    with np.load(path.with_suffix(".npz")) as numbers:
        np.testing.assert_array_equal(numbers["axis"], [-0.5, 0.0, 0.5])
        assert numbers["global"].shape == numbers["personalized"].shape == (3, 3)
        assert np.isfinite(numbers["personalized"]).all()
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_whoever_reads_the_output_may_leave(run_dir, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(tmp_path / "errors", "w+") as errors, open(writer, "w") as output:
        done = subprocess.run(
            [sys.executable, "programs/report.py", "table", f"a:{run_dir}"],
            cwd=ROOT,
            stdout=output,
            stderr=errors,
        )
        errors.seek(0)
        assert (done.returncode, errors.read()) == (0, "")


def test_the_help_has_all_subcommands_and_flags():
    program = ROOT / "programs" / "report.py"
    subcommands = subcommands_of_report()
    explained = program.read_text().partition('"""\n\nimport')[0]
    for name, subcommand in subcommands.items():
        usage = re.search(rf"^    report.py {name} (.*(?:\n        .*)*)", explained, re.MULTILINE)[
            1
        ]
        assert usage.startswith(subcommand.arguments)
        assert re.findall(r"--(\w+)", usage) == list(subcommand.all_flags)
    known = {flag for subcommand in subcommands.values() for flag in subcommand.all_flags}
    assert known == flags_of(program) - flags_of(ROOT / "setup.py")


def test_mistakes_are_answered_with_one_message(run_dir, tmp_path):
    evaluate = ["evaluate.py", f"--output={tmp_path / 'evaluated'}"]
    output = f"--output={tmp_path / 'curves.png'}"

    def report(*arguments):
        return ["report.py", *arguments, output]

    mistakes = {
        "Fractions are numbers in [0, 1].": [*evaluate, "--run_dir=run", "--synthetic=0.5,1.5"],
        "--synthetic=['half']: Fractions are": [*evaluate, "--run_dir=run", "--synthetic=half"],
        "flag --split=train: value should be": [*evaluate, "--run_dir=run", "--split=train"],
        "flag --fine_tune_epochs=-1: -1 is not": [
            *evaluate,
            "--run_dir=run",
            "--fine_tune_epochs=-1",
        ],
        "no_run has no config.json of a run": [*evaluate, "--run_dir=no_run"],
        "Flag --run_dir must have a value": evaluate,
        "synthetic=(0.5,) has no effect, as generalization is 'never'.": [
            *evaluate,
            f"--run_dir={run_dir}",
            "--nogeneralization",
            "--synthetic=0.5",
        ],
        "a: has no config.json of a run: there is no such folder": report("curves", "a:"),
        "'run' is the name of several runs": report("curves", run_dir, f"run:{run_dir}"),
        "Ids are integers.": report("curves", f"a:{run_dir}", "--exclude_clients=one"),
        "Did you mean 'global/local_test/loss'": report(
            "curves", f"a:{run_dir}", "--column=global/local_test/los"
        ),
        "Name a subcommand: curves, against_bytes, against_epsilon": report(),
        "Unknown subcommand 'histgram'. Did you mean 'histogram'?": report("histgram"),
        "curves has no arguments: curves NAME:DIR...": report("curves"),
        "influence has too many arguments, ['b']: influence DIR": report("influence", "a", "b"),
        "curves knows no --threshold, which is of histogram": report(
            "curves", f"a:{run_dir}", "--threshold=0.5"
        ),
        "histogram knows no --log_scale, which is of curves": report(
            "histogram", f"a:{run_dir}", "--nolog_scale"
        ),
        "curves needs --output, a file that ends in .png, .pdf or .svg": [
            "report.py",
            "curves",
            f"a:{run_dir}",
        ],
        "has no snapshots": report("influence", run_dir),
        "clients=['0', 'x']: Ids are integers.": report("mixtures", run_dir, "--clients=0,x"),
        "target=None: They are finite numbers.": report("curves", f"a:{run_dir}", "--top=nan"),
        "--target=70: 70.0 is not a number in the range [0, 1]": report(
            "page", f"a:{run_dir}", "--target=70"
        ),
        "x/ is a folder; name the files in it: x/NAME.": [
            evaluate[0],
            f"--run_dir={run_dir}",
            "--output=x/",
        ],
        "config.json is a file.": [
            "report.py",
            "loss_surface",
            run_dir,
            f"--output={run_dir / 'config.json' / 'surface.png'}",
        ],
        "'a' is the name of two runs with seed 0": report("curves", f"a:{run_dir}", f"a:{run_dir}"),
        "to leave out: its ids are 0 to 3.": report(
            "curves", f"a:{run_dir}", "--exclude_clients=1,77"
        ),
        "--output of influence ends in .png, .pdf or .svg, found 'x.npz'.": [
            "report.py",
            "influence",
            "run",
            "--output=x.npz",
        ],
        "was not evaluated at round 7, but at 1, 2.": report(
            "histogram", f"a:{run_dir}", "--round=7"
        ),
        "Did you mean 'personalized/local_test/loss'": report(
            "histogram", f"a:{run_dir}", "--column=personal/local_test/loss"
        ),
        "Client 4 does not exist: ids are 0..3.": report("loss_surface", run_dir, "--client=4"),
        "has an odd number of points a side": report("loss_surface", run_dir, "--points=4"),
        "no_such_run has no config.json of a run": report("loss_surface", "no_such_run"),
    }
    for message, arguments in mistakes.items():
        done = run_main(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

"""Tests the command line of `report.py`."""

import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

from tests.analysis.hand_written import write_run
from tests.runs import ROOT, run_main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Writes the files of three runs, with labels of all kinds."""
    root = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("quickstart", "b", "c")):
        write_run(root / name, [0.0, 0.5, 0.75 + seed / 8], seed=seed, epsilon=2.0)
    return root


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("curves", "quickstart", "both:b", "both:c"),
        ("curves", "quickstart", "--exclude_clients=0,2", "--log_scale", "b"),
        ("histogram", ".", "--threshold=0.6", "--exclude_clients=1"),
        ("against_bytes", "a | x:b", "b | x:c"),
        ("against_epsilon", "quickstart", "b"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_subcommands_write_figures(runs, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(runs)
    done = run_main("report.py", *arguments, f"--output={tmp_path / 'new/figure.png'}")
    assert (done.returncode, done.stderr) == (0, "")
    pixels = matplotlib.image.imread(tmp_path / "new/figure.png")
    assert 0.01 < np.mean(pixels[..., :3].min(axis=-1) < 0.9) < 0.6  # neither blank nor filled
    if arguments[0] == "histogram":
        row = next(line for line in done.stdout.splitlines() if "quickstart" in line)
        assert row == "| quickstart | 10 | 2 | 0.3750 | 0.0000 | 0.7500 | 50.0 % |"
    else:
        assert done.stdout == ""


@pytest.mark.thorough
def test_subcommands_print_tables_and_write_a_page(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    done = run_main("report.py", "table", "quickstart", "b", "--against=b", "--format=csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('method,personalized (%),"personalized, minus b\'s",')
    done = run_main("report.py", "clients", "quickstart")
    assert done.stdout == "seed,client_id,quickstart\n0,0,0.0\n0,1,0.5\n0,2,0.75\n"
    monkeypatch.chdir(tmp_path)
    done = run_main("report.py", "page", runs / "quickstart")
    assert (done.returncode, done.stdout, done.stderr) == (0, "written: page.html\n", "")
    assert "<h1>quickstart</h1>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curves", "b", "--clients=0", "--output=x.png"], "unknown arguments: --clients=0"),
        (["page", "b", "--output=page.png"], "must end in .html, found page.png"),
        (["curves", "b", "--output=b/config.json/x.png"], "config.json is a file."),
        (
            ["page", "b", "--target=70", "--output=x.html"],
            "--target: must be from 0 to 1, found 70",
        ),
        (["curves", "nowhere", "--output=x.png"], "nowhere has no config.json of a run: there is"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_print_one_message(runs, monkeypatch, arguments, message):
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    done = run_main("report.py", *arguments)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr
    assert sorted(runs.rglob("*")) == before


@pytest.mark.thorough
def test_closed_output_pipe_is_no_error(runs):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output:
        done = subprocess.run(
            [sys.executable, "programs/report.py", "table", runs / "b"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (0, "")

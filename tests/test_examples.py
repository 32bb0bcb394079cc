"""The examples, as a user has them who copied their folder to somewhere else."""

import csv
import json
import shutil

import pytest

from tests.own_modules import own_modules
from tests.runs import ROOT, config_of_flags, run_python
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.experiment import evaluate_program, run_program
from tff_pfl.reports.loss_surface import loss_surfaces_of_run

FLAGS = (
    "--config=mine/config.py",
    "--config.rounds=2",
    "--config.algorithm.own_share=0.8",
    "--config.model.options.width=4",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of a user; the programs run in it."""
    shutil.copytree(ROOT / "examples" / "own_method", tmp_path / "mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep_the_context():
    """Executes in the context of the tests."""


def assert_is_the_users_own(run):
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"]["own_share"] == 0.8
    assert config["model"] == {"name": "small_network", "options": {"width": 4}}
    assert config["import_path"][0] == str(run.parent / "mine")


def test_ones_own_method_data_set_and_model(folder, monkeypatch):
    """A process that evaluates, and has not trained, knows nothing of them but from the run."""
    run = folder / "run"
    with own_modules(folder):
        config = config_of_flags(monkeypatch, *FLAGS)
        assert run_program(config, str(run), set_context=keep_the_context) == 0
    assert_is_the_users_own(run)
    monkeypatch.chdir(folder / "elsewhere")
    assert "mixed_start" not in ALGORITHMS
    with own_modules(folder):
        assert evaluate_program(str(run), "result", set_context=keep_the_context) == 0
        assert "mixed_start" in ALGORITHMS
    assert json.loads((folder / "elsewhere" / "result.json").read_text())["round_num"] == 2
    with own_modules(folder):
        surfaces = loss_surfaces_of_run(str(run), points=3, max_examples=10)
    assert [surface.shape for surface in surfaces.surfaces.values()] == [(3, 3)] * 2


@pytest.mark.parametrize(("own_share", "other"), [(0.0, "fedavg"), (1.0, "local")])
def test_what_the_method_says_of_its_option(folder, monkeypatch, own_share, other):
    def losses(algorithm, *flags):
        with own_modules(folder):
            config = config_of_flags(monkeypatch, f"{FLAGS[0]}:{algorithm}", *FLAGS[1:2], *flags)
            assert run_program(config, str(folder / algorithm), set_context=keep_the_context) == 0
        with open(folder / algorithm / "clients" / "round_000002.csv") as file:
            return [float(row["personalized/local_test/loss"]) for row in csv.DictReader(file)]

    found = losses("mixed_start", f"--config.algorithm.own_share={own_share}")
    assert found == pytest.approx(losses(other), rel=1e-5)


@pytest.mark.slow
def test_ones_own_method_by_the_programs(folder):
    def run_program(name, *arguments, where="."):
        program = ROOT / "programs" / f"{name}.py"
        done = run_python(program, *arguments, folder=folder / where)
        assert (done.returncode, done.stderr) == (0, "")

    run_program("train", *FLAGS, "--output_dir=run")
    assert_is_the_users_own(folder / "run")
    run_program("evaluate", "--run_dir=../run", "--output=result", where="elsewhere")
    surface = ("--loss_surface=../run", "--surface_points=3", "--output=surface.png")
    run_program("report", *surface, where="elsewhere")
    run_program("train", *FLAGS, "--config.rounds=3", "--output_dir=../run", "--resume")

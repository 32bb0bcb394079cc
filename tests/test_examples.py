"""Tests the examples in a copy of their folder elsewhere."""

import json
import shutil

import numpy as np
import pytest

from tests.federation import assert_close
from tests.own_modules import own_modules
from tests.runs import ROOT, config_of_flags, run_python
from tff_pfl import testing
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.config import evaluate_program, run_program
from tff_pfl.config.imports import import_modules
from tff_pfl.templates import Client

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

FLAGS = (
    "--config=mine/config.py",
    "--config.rounds=2",
    "--config.algorithm.own_share=0.8",
    "--config.model.options.width=4",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes a user's folder, in which the programs run."""
    shutil.copytree(ROOT / "examples" / "own_method", tmp_path / "mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_is_the_users_own(run):
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"]["own_share"] == 0.8
    assert config["model"]["name"] == "small_network"
    assert config["model"]["options"] == {"width": 4}
    assert config["import_path"][0] == str(run.parent / "mine")


@pytest.mark.thorough
def test_own_method_data_set_and_model_train_and_evaluate(folder, monkeypatch):
    """Checks that an evaluating process finds the own modules through the run alone."""
    run = folder / "run"
    with own_modules(folder):
        config = config_of_flags(monkeypatch, *FLAGS)
        assert run_program(config, str(run)) == 0
    assert_is_the_users_own(run)
    monkeypatch.chdir(folder / "elsewhere")
    assert "mixed_start" not in ALGORITHMS
    with own_modules(folder):
        assert evaluate_program(str(run), "result", trust_imports=True) == 0
        assert "mixed_start" in ALGORITHMS
    result = json.loads((folder / "elsewhere" / "result.json").read_text())
    assert (result["run"], result["round_num"]) == (f"mixed_start on {config.data.name}", 2)


@pytest.mark.slow
def test_programs_train_evaluate_and_report_the_own_method(folder):
    def run_program(name, *arguments, where="."):
        program = ROOT / "programs" / f"{name}.py"
        done = run_python(program, *arguments, folder=folder / where)
        assert (done.returncode, done.stderr) == (0, "")

    run_program("train", *FLAGS, "--output_dir=run")
    assert_is_the_users_own(folder / "run")
    evaluate = ("--run_dir=../run", "--output=result", "--trust_imports")
    run_program("evaluate", *evaluate, where="elsewhere")
    modules = "--imports=mixed_start,small_network,stripes"
    run_program("evaluate", *evaluate[:2], modules, where="mine")
    run_program("train", *FLAGS, "--config.rounds=3", "--output_dir=../run", "--resume")


@pytest.fixture(scope="module")
def mixed_start():
    """Yields the method of the example."""
    folder = ROOT / "examples" / "own_method"
    with own_modules(folder):
        import_modules(["mixed_start"], [str(folder)])
        yield ALGORITHMS["mixed_start"]


def test_own_share_interpolates_between_fedavg_and_local(mixed_start):
    def models(make, **options):
        algorithm = make(testing.tiny_model(), testing.tiny_local(), **options)
        process = testing.EagerProcess(algorithm)
        clients = [
            Client(np.int32(i), process.initialize_client(i), testing.tiny_examples(size, seed=i))
            for i, size in enumerate((6, 9))
        ]
        state = process.initialize()
        for _ in range(2):
            state, states, _ = process.next(state, clients)
            clients = [c._replace(state=s) for c, s in zip(clients, states, strict=True)]
        return process.personalize(state, clients)

    assert_close(models(mixed_start, own_share=0.0), models(ALGORITHMS["fedavg"]))
    assert_close(models(mixed_start, own_share=1.0), models(ALGORITHMS["local"]))


@pytest.mark.slow
def test_own_method_passes_the_contract(mixed_start):
    for check in testing.CHECKS:
        check(testing.Subject.of(mixed_start))

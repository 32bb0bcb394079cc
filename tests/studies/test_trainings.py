"""Tests how runs are trained by their recipes, and by one process at a time."""

import fcntl
import sys
import threading

import pytest

from tests.own_modules import own_modules
from tests.runs import tiny_config
from tff_pfl import config as configs
from tff_pfl.cluster.recipes import Recipe
from tff_pfl.experiment import resolved
from tff_pfl.experiment.summary import finished_summary
from tff_pfl.output.progress import Bar
from tff_pfl.studies import trainings
from tff_pfl.studies.engines import Died
from tff_pfl.studies.trainings import train_all, train_recipe


def trained(recipes, root, engine, **options):
    """Returns the runs that `train_all` has trained."""
    with Bar(disable=True) as bar:
        return dict(train_all(recipes, root, engine, bar, **options))


def test_run_of_a_recipe_is_that_of_its_config(tmp_path):
    recipe = Recipe.of(resolved(tiny_config()))
    folder = tmp_path / "study/run"
    assert train_recipe(recipe, str(folder)) == 0
    assert configs.run_program(tiny_config(), str(tmp_path / "own")) == 0
    for name in ("metrics.csv", "config.json"):
        assert (folder / name).read_text() == (tmp_path / "own" / name).read_text()
    assert "results: " in (tmp_path / "study/run.log").read_text()
    assert finished_summary(folder, 2) is not None


def test_run_that_another_process_trains_is_waited_for(tmp_path):
    run, calls = tmp_path / "run", []
    with open(f"{run}.log", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert trainings._logged(lambda: calls.append(0), str(run), False) == "busy"
        waiting = threading.Thread(
            target=trainings._logged, args=(lambda: calls.append(1), str(run), True)
        )
        waiting.start()
        waiting.join(0.1)
        assert calls == []
    waiting.join()
    assert calls == [1]


def test_busy_runs_come_last(tmp_path, capsys):
    order = []

    def engine(function, calls, started):
        for key, (_, _, waits) in calls.items():
            order.append((key, waits))
            yield key, "busy" if key == "a" and not waits else 0

    found = trained({"a": None, "b": None}, tmp_path, engine)
    assert found == {"b": None, "a": None}
    assert order == [("a", False), ("b", False), ("a", True)]
    assert "waiting for other programs: they train a\n" in "".join(capsys.readouterr())


def test_outcomes_are_problems_or_interruptions(tmp_path):
    def engine(outcome):
        return lambda function, calls, started: ((key, outcome) for key in calls)

    (tmp_path / "a.log").write_text("start\nerror: It failed.\nSee there.\n")
    assert trained({"a": None}, tmp_path, engine(1)) == {"a": "It failed."}
    assert trained({"a": None}, tmp_path, engine(Died("killed."))) == {"a": "killed."}
    for code in (130, 143):
        with pytest.raises(KeyboardInterrupt):
            trained({"a": None}, tmp_path, engine(code))


METHOD = """
import tff_pfl
tff_pfl.ALGORITHMS.variant("copied", tff_pfl.ALGORITHMS["fedavg"])
"""


def test_recipe_has_the_folder_and_the_code_of_own_modules(tmp_path):
    (tmp_path / "copied_method.py").write_text(METHOD)
    with own_modules(tmp_path):
        sys.path.insert(0, str(tmp_path))
        config = configs.default_config("copied", imports=("copied_method",))
        recipe = Recipe.of(resolved(config))
        assert recipe.settings["import_path"] == [str(tmp_path)]
        assert recipe.config().algorithm.name == "copied"
        other = recipe._replace(code={name: "0" for name in recipe.code})
        with pytest.raises(configs.ConfigError, match="copied_method of this worker differs"):
            other.config()

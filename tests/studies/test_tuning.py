"""Tests the choice of settings on validation data, by lists, stages and searches."""

import csv
import dataclasses
import math
import re
import shutil

import pytest

from tff_pfl import analysis, studies
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.studies import Search, Study, Tuning, Variant, grid, uniform
from tff_pfl.studies.tuning import Tuner

RATES = grid({"rate": (1.0, 4.0, 2.0, 3.0)})
TUNING = Tuning(RATES, {"data.fractions": (0.6, 0.1, 0.3)}, rounds=(1, 5, 9))
HALVING = Study(
    "Rates",
    {"A": Variant("a.py"), "B": Variant("b.py", {"rate": 7.0}, trials=[{"rate": 5.0}])},
    seeds=(3, 4),
    tuning=TUNING,
)
SEARCH = Search({"rate": studies.log_uniform(1.0, 9.0)}, number=4)
SEARCHING = Study("Found", {"A": Variant("a.py")}, tuning=Tuning(SEARCH))


def with_tuning(study, **changes):
    return dataclasses.replace(study, tuning=dataclasses.replace(study.tuning, **changes))


def rows(folder):
    with open(folder / "tuning.csv", newline="") as file:
        return [list(row.values()) for row in csv.DictReader(file)]


@pytest.mark.thorough
def test_better_half_of_trials_continues(tmp_path, program):
    """Uses a program whose accuracy is the rate after one round, then rounds * (10 - rate)."""
    folder = tmp_path / "study"
    assert program.run(HALVING, folder, jobs=2) == []
    assert rows(folder) == [
        *(["A", f"rate {rate}", "1", f"{rate}", "False"] for rate in (1.0, 4.0, 2.0)),
        ["A", "rate 3.0", "1", "3.0", "True"],
        ["A", "rate 4.0", "5", "30.0", "False"],
        ["A", "rate 3.0", "5", "35.0", "True"],
        ["A", "rate 3.0", "9", "63.0", "True"],
    ]
    started = program.started()
    trials = [flags for flags in started if "validation" in flags]
    assert len(trials) == 4 + 2 + 1 and all("(0.6, 0.1, 0.3)" in flags for flags in trials)
    assert [flags for flags in started if "validation" not in flags] == [
        f"--config={config} rate={rate} seed={seed}"
        for config, rate in (("a.py", 3.0), ("b.py", 5.0))
        for seed in (3, 4)
    ]
    # A second time, nothing is run, even without the trials' folders: the scores are stored.
    shutil.rmtree(folder / "tuning")
    assert program.run(HALVING, folder) == []
    assert program.started() == started


@pytest.mark.thorough
def test_scores_are_means_over_seeds_and_the_lowest_loss_is_the_best(tmp_path, program):
    study = with_tuning(HALVING, rounds=(), seeds=(0, 1), metric="personalized/loss")
    program.run(study, tmp_path)
    assert [row[1:4] for row in rows(tmp_path)] == [
        [f"rate {rate}", "nan", f"{-3 * (10 - rate)}"] for rate in (1.0, 4.0, 2.0, 3.0)
    ]
    assert [row[1] for row in rows(tmp_path) if row[4] == "True"] == ["rate 1.0"]
    assert len([flags for flags in program.started() if "validation" in flags]) == 8


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("direction", "stated", "best"),
    [(None, 1, "rate 1.0"), (None, -1, "rate 4.0"), (-1, 1, "rate 4.0"), (1, -1, "rate 1.0")],
)
def test_direction_is_that_of_the_tuning_or_of_its_runs(tmp_path, program, direction, stated, best):
    """Uses a program whose accuracy is 3 * (10 - rate)."""
    tuning = Tuning(RATES[:2], direction=direction)
    study = Study("Some", {"A": Variant("a.py")}, settings={"better": stated}, tuning=tuning)
    for _ in range(2):  # the second time, without the trials' folders
        assert program.run(study, tmp_path) == []
        assert [row[1] for row in rows(tmp_path) if row[4] == "True"] == [best]
        shutil.rmtree(tmp_path / "tuning", ignore_errors=True)


@pytest.mark.thorough
def test_trials_that_fail_or_diverge_are_not_chosen(tmp_path, program, capsys, monkeypatch):
    trials = [{"rate": math.inf}, {"rate": 2.0, "fails": True}, {"rate": 3.0}]
    variants = {
        "A": Variant("a.py"),
        "all fail": Variant("b.py", trials=grid({"rate": (1.0, 2.0), "fails": (True,)})),
        "all diverge": Variant("c.py", trials=grid({"rate": (math.inf, -math.inf)})),
    }
    study = Study("Bad", variants, tuning=Tuning(trials))
    folder = tmp_path / "study"
    failed = program.run(study, folder)
    assert [run.folder for run in failed] == [
        "tuning/A/rate_2.0_fails_True/seed0",
        "tuning/all_fail/rate_1.0_fails_True/seed0",
        "tuning/all_fail/rate_2.0_fails_True/seed0",
    ]
    assert [row[:2] for row in rows(folder) if row[4] == "True"] == [["A", "rate 3.0"]]
    assert rows(folder)[0][3] == "nan"
    printed = "".join(capsys.readouterr())
    for label in ("all fail", "all diverge"):
        assert f"{label}: no trial has a finite score" in printed
    assert not (folder / "all_fail").exists()
    # The same command retries failed trials, which may then be the best.
    shutil.rmtree(folder / "A")
    monkeypatch.setenv("MENDED", "1")
    assert program.run(study, folder) == []
    chosen = [row[:2] for row in rows(folder) if row[4] == "True"]
    assert chosen == [["A", "rate 2.0, fails True"], ["all fail", "rate 1.0, fails True"]]


@pytest.mark.thorough
def test_changed_metric_or_seeds_start_a_new_tuning(tmp_path, program):
    study = with_tuning(HALVING, rounds=())
    program.run(study, tmp_path)
    for other in (with_tuning(study, metric="personalized/loss"), with_tuning(study, seeds=(0, 1))):
        tuner = Tuner(other, "A", tmp_path)
        assert tuner.chosen() is None and list(tuner.scores()) == []
    shutil.rmtree(tmp_path / "A")
    shutil.rmtree(tmp_path / "B")
    with pytest.raises(OutputDirectoryError, match="Runs of 'A' have no global/accuracy"):
        program.run(with_tuning(study, metric="global/accuracy"), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("study", [HALVING, SEARCHING], ids=["halving", "search"])
def test_changed_tuning_is_refused_before_its_trials_once_the_table_has_runs(
    study, tmp_path, program
):
    program.run(study, tmp_path)
    before = program.started(), (tmp_path / "tuning.csv").read_bytes()
    if study is SEARCHING:
        other = with_tuning(study, trials=Search({"rate": uniform(5.0, 6.0)}, 4))
    else:
        other = with_tuning(study, seeds=(0, 1))
    with pytest.raises(OutputDirectoryError, match="A/seed. has settings that another tuning"):
        program.run(other, tmp_path)
    assert (program.started(), (tmp_path / "tuning.csv").read_bytes()) == before
    assert program.run(study, tmp_path) == []


@pytest.mark.slow
def test_longer_run_is_not_compared_after_fewer_rounds(tmp_path, program):
    program.run(HALVING, tmp_path)
    shutil.rmtree(tmp_path / "A")
    shutil.rmtree(tmp_path / "B")
    with pytest.raises(
        OutputDirectoryError, match="rate_4.0/seed0 has already done 5 rounds, .* after 1 "
    ):
        program.run(with_tuning(HALVING, seeds=(0, 1)), tmp_path)


@pytest.mark.thorough
def test_better_trial_does_not_replace_runs_silently(tmp_path, program):
    few = with_tuning(HALVING, rounds=(), trials=RATES[1:3])
    program.run(few, tmp_path)
    more = with_tuning(few, trials=RATES)
    with pytest.raises(OutputDirectoryError, match="A/seed3 was run with other settings"):
        program.run(more, tmp_path)
    assert analysis.read(tmp_path).chosen == {"A": "rate 2.0", "B": "rate 5.0"}


def test_damaged_storage_is_refused(tmp_path, program):
    (tmp_path / "tuning.db").write_text("no database" * 99)
    with pytest.raises(OutputDirectoryError, match="tuning.db cannot be .* not a database"):
        program.run(HALVING, tmp_path)


def trials_of(folder):
    """Returns the names of the trials, in order."""
    return [row[1] for row in rows(folder)]


@pytest.mark.thorough
def test_search_is_reproducible_and_chooses_the_best(tmp_path, program):
    """Uses a program whose best rate is the lowest."""
    program.run(SEARCHING, tmp_path / "a")
    found = trials_of(tmp_path / "a")
    rates = [float(trial.removeprefix("rate ")) for trial in found]
    assert len(set(rates)) == 4 and rates[0] == 3.0  # the centre
    assert all(1 <= rate <= 9 for rate in rates)
    program.run(SEARCHING, tmp_path / "b", jobs=2)
    assert trials_of(tmp_path / "b") == found
    assert [row[1] for row in rows(tmp_path / "a") if row[4] == "True"] == [f"rate {min(rates)}"]
    # A second time, nothing is run. A larger number continues the search.
    started = program.started()
    program.run(SEARCHING, tmp_path / "a")
    assert program.started() == started
    shutil.rmtree(tmp_path / "a/A")
    longer = with_tuning(SEARCHING, trials=dataclasses.replace(SEARCH, number=5))
    program.run(longer, tmp_path / "a")
    assert len(trials_of(tmp_path / "a")) == 5 and trials_of(tmp_path / "a")[:4] == found


@pytest.mark.thorough
def test_killed_search_resumes_with_the_same_trials(tmp_path, program, monkeypatch):
    program.run(SEARCHING, tmp_path / "whole")
    add = Tuner._add
    for kill_at in (1, 3):

        def killed(self, name, *args, number=kill_at):
            add(self, name, *args)
            if len(self._trials()) == number:
                raise SystemExit  # writes nothing more, like SIGKILL

        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(Tuner, "_add", killed)
            program.run(SEARCHING, tmp_path / "killed")
    program.run(SEARCHING, tmp_path / "killed")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.slow
def test_searches_in_parallel_use_halving(tmp_path, program):
    """Continues a trial that is in the better half of all trials at its stage so far."""
    single = dataclasses.replace(SEARCH, number=6)
    pairs = dataclasses.replace(SEARCH, at_a_time=2, number=5)
    variants = {"A": Variant("a.py"), "B": Variant("b.py", trials=pairs)}
    study = Study("Two", variants, tuning=Tuning(single, rounds=(1, 5)))
    assert program.run(study, tmp_path, jobs=2) == []
    for label, batches in {"A": [1] * 6, "B": [2, 2, 1]}.items():
        first, second = (
            [row for row in rows(tmp_path) if row[:1] + row[2:3] == [label, rounds]]
            for rounds in ("1", "5")
        )
        reached, expected = [float(row[3]) for row in first], []
        assert len(reached) == sum(batches)
        for size in batches:
            so_far = reached[: len(expected) + size]
            bound = sorted(so_far, reverse=True)[(len(so_far) + 1) // 2 - 1]
            expected += [rate >= bound for rate in so_far[-size:]]
        continued = {row[1] for row in second}
        assert [row[1] in continued for row in first] == expected


@pytest.mark.thorough
def test_search_has_values_of_any_type(tmp_path, program):
    values = {
        "rate": studies.log_uniform(0.001, 1.0),
        "share": studies.uniform(0.0, 1.0),
        "kind": studies.one_of("plain", ("a", "b"), True),
    }
    for name, seed in (("a", 3), ("b", 4)):
        search = Search(values, number=4, seed=seed)
        program.run(with_tuning(SEARCHING, trials=search), tmp_path / name)
    first, *rest = trials_of(tmp_path / "a")
    other_first, *other_rest = trials_of(tmp_path / "b")
    assert first == other_first == "rate 0.0316, share 0.5, kind plain"
    assert rest != other_rest
    for trial in rest:
        rate, share, kind = re.fullmatch(r"rate (.*), share (.*), kind (.*)", trial).groups()
        assert kind in ("plain", "('a', 'b')", "True")
        assert float(rate) == float(f"{float(rate):.3g}")
        assert float(share) == float(f"{float(share):.3g}")


def test_search_stops_proposing_after_failures(tmp_path, program):
    study = Study("Bad", {"A": Variant("a.py", {"fails": True})}, tuning=Tuning(SEARCH))
    assert len(program.run(study, tmp_path)) == 1

"""How studies choose settings: on validation data, by stages, each score measured once."""

import csv
import dataclasses
import json
import math
import shutil

import numpy as np
import pytest

from tests.reports.hand_written import write_run
from tests.studies.test_studies import program, started  # noqa: F401
from tff_pfl import studies
from tff_pfl.data import Partition
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import results_table, to_markdown
from tff_pfl.studies import Scores, Study, StudyError, Tuning, Variant, draws, grid
from tff_pfl.studies.runner import chosen_trials
from tff_pfl.studies.shared_examples import shares_chosen_with

RATES = grid({"rate": (1.0, 4.0, 2.0, 3.0)})
TUNING = Tuning(RATES, {"data.fractions": (0.6, 0.1, 0.3)}, rounds=(1, 5, 9))
STUDY = Study(
    "Rates",
    {"A": Variant("a.py"), "B": Variant("b.py", {"rate": 7.0}, trials=grid({"rate": (5.0,)}))},
    seeds=(3, 4),
    tuning=TUNING,
)


def test_a_grid():
    assert grid({"a": (1, 2), "b": ("x",)}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert grid({}) == [{}]
    for one in (0.1, "0.1"):
        with pytest.raises(ValueError, match=r"values of 'rate' must be a tuple, such as \(.*0.1"):
            grid({"rate": one})


def test_draws():
    values = {
        "rate": studies.log_uniform(1e-3, 1.0),
        "share": studies.uniform(0.25, 0.5),
        "name": studies.one_of("x", "y"),
    }
    trials = draws(values, 200, seed=1)
    assert trials[:50] == draws(values, 50, seed=1) != draws(values, 50, seed=2)
    rates, shares, names = (np.array([trial[key] for trial in trials]) for key in values)
    assert 1e-3 <= rates.min() < 2e-3 and 0.5 < rates.max() <= 1
    assert np.median(rates) == pytest.approx(10**-1.5, rel=0.5)
    assert shares.min() >= 0.25 and shares.max() <= 0.5
    assert np.mean(shares) == pytest.approx(0.375, abs=0.02)
    assert set(names) == {"x", "y"} and 70 < np.sum(names == "x") < 130
    assert all(len(f"{share}") <= 5 for share in shares)


@pytest.mark.parametrize("kind", [studies.uniform, studies.log_uniform])
def test_rounding_stays_between_the_bounds(kind):
    trials = draws({"low": kind(1.004, 2.0), "high": kind(0.99, 0.9996)}, 2000)
    assert min(trial["low"] for trial in trials) == 1.004
    assert max(trial["high"] for trial in trials) == 0.9996


def test_the_better_half_goes_on_and_the_best_is_run_on_test_data(tmp_path, program):  # noqa: F811
    assert studies.run_study(STUDY, tmp_path / "study", program, jobs=2) == []
    tried = "data.fractions=(0.6, 0.1, 0.3) rate={} evaluation.split=validation seed=0 rounds={}"
    # After one round, the highest rate is the best; of those that go on, the lowest.
    numbers = [(1.0, 1), (4.0, 1), (2.0, 1), (3.0, 1), (4.0, 5), (3.0, 5), (3.0, 9)]
    of_a = [f"--config=a.py {tried.format(*number)}" for number in numbers]
    final = [f"--config=a.py rate=3.0 seed={seed}" for seed in (3, 4)]
    final += [f"--config=b.py rate=5.0 seed={seed}" for seed in (3, 4)]
    found = started(program)
    assert [x for x in found if "a.py" in x] == sorted([*of_a, *final[:2]])
    assert [x for x in found if "b.py" in x and "seed=0" not in x] == sorted(final[2:])
    assert len([x for x in found if "b.py" in x]) == 2  # of one trial, nothing is chosen
    scores = Scores(STUDY, tmp_path / "study")
    assert scores.chosen() == {"A": "rate 3.0", "B": "rate 5.0"}
    assert scores.rows()[-3:] == [
        ("A", "rate 4.0", 5, 30.0, False),
        ("A", "rate 3.0", 5, 35.0, True),
        ("A", "rate 3.0", 9, 63.0, True),
    ]
    # Once more: all that there is, is known.
    assert studies.run_study(STUDY, tmp_path / "study", program) == []
    assert started(program) == found


def test_trials_whose_score_is_known_are_not_run_again(tmp_path, program):  # noqa: F811
    """Where their folders are gone, `tuning.json` is enough."""
    studies.run_study(STUDY, tmp_path / "study", program)
    before, found = Scores(STUDY, tmp_path / "study").rows(), started(program)
    shutil.rmtree(tmp_path / "study/tuning")
    assert studies.run_study(STUDY, tmp_path / "study", program) == []
    assert Scores(STUDY, tmp_path / "study").rows() == before
    assert started(program) == found


def test_scores_are_means_over_seeds_and_the_lowest_loss_is_the_best(tmp_path, program):  # noqa: F811
    tuning = Tuning(RATES, seeds=(0, 1), metric="personalized/loss")
    study = dataclasses.replace(STUDY, variants={"A": Variant("a.py")}, tuning=tuning)
    studies.run_study(study, tmp_path / "study", program)
    scores = Scores(study, tmp_path / "study")
    assert scores.chosen() == {"A": "rate 1.0"}
    assert [row[2:4] for row in scores.rows()] == [(None, -3 * (10 - r)) for r in (1, 4, 2, 3)]
    assert len([x for x in started(program) if "validation" in x]) == 8


def test_scores_of_other_seeds_are_others(tmp_path, program):  # noqa: F811
    one = dataclasses.replace(STUDY, tuning=Tuning(RATES[:2]))
    two = dataclasses.replace(STUDY, tuning=Tuning(RATES[:2], seeds=(0, 1)))
    studies.run_study(one, tmp_path / "study", program)
    assert Scores(two, tmp_path / "study").rows() == []
    assert len(Scores(one, tmp_path / "study").rows()) == 2


def test_trials_that_fail_or_diverge_are_not_chosen(tmp_path, program):  # noqa: F811
    trials = [{"rate": float("inf")}, {"rate": 2.0, "fails": True}, {"rate": 3.0}]
    bad = [{"rate": rate, "fails": True} for rate in (1.0, 2.0)]
    variants = {"A": Variant("a.py"), "all fail": Variant("b.py", trials=bad)}
    study = Study("Bad", variants, tuning=Tuning(trials))
    failed = studies.run_study(study, tmp_path / "study", program)
    assert [run.folder for run in failed] == [
        "tuning/A/rate_2.0_fails_True/seed0",
        "tuning/all_fail/rate_1.0_fails_True/seed0",
        "tuning/all_fail/rate_2.0_fails_True/seed0",
    ]
    scores = Scores(study, tmp_path / "study")
    assert scores.chosen() == {"A": "rate 3.0"}
    assert scores.rows()[0] == ("A", "rate inf", None, None, False)
    assert not (tmp_path / "study/all_fail").exists()


def test_the_directory_alone_tells_what_was_chosen(tmp_path, program):  # noqa: F811
    study = Study("Two", {"A": Variant("a.py")}, tuning=Tuning(RATES[:2]))
    studies.run_study(study, tmp_path, program)
    (tmp_path / "A/seed0/summary.json").unlink()  # all the program leaves; a table needs more
    write_run(tmp_path / "A/seed0", [0.5, 1.0])
    by_file = studies.comparison_of_study(study, tmp_path)
    alone = studies.comparison_of([str(tmp_path)])
    assert alone.chosen == by_file.chosen == {"A": "rate 1.0"}
    table = to_markdown(results_table(alone))
    assert table.startswith("| method | chosen | ") and table == to_markdown(results_table(by_file))
    record = json.loads((tmp_path / "variants.json").read_text())
    del record["chosen"]  # as earlier versions wrote it
    (tmp_path / "variants.json").write_text(json.dumps(record))
    assert studies.comparison_of([str(tmp_path)]).chosen == {}


def test_a_metric_that_runs_do_not_have(tmp_path, program):  # noqa: F811
    study = dataclasses.replace(STUDY, tuning=Tuning(RATES, metric="global/accuracy"))
    with pytest.raises(ValueError, match="Runs of 'A' have no global/accuracy"):
        studies.run_study(study, tmp_path / "study", program)


def test_other_settings_of_trials_are_refused(tmp_path, program):  # noqa: F811
    studies.run_study(STUDY, tmp_path / "study", program)
    tuning = dataclasses.replace(TUNING, settings={"data.fractions": (0.5, 0.2, 0.3)})
    with pytest.raises(StudyError, match="(?s)is a run of other settings.*0.6.*and not.*0.5"):
        studies.run_study(dataclasses.replace(STUDY, tuning=tuning), tmp_path / "study", program)


def test_scores_of_another_metric_are_not_taken(tmp_path, program):  # noqa: F811
    studies.run_study(STUDY, tmp_path / "study", program)
    tuning = dataclasses.replace(TUNING, metric="personalized/loss")
    other = dataclasses.replace(STUDY, tuning=tuning)
    assert Scores(other, tmp_path / "study").rows() == []


def test_a_score_whose_settings_are_forgotten_is_not_taken(tmp_path, program):  # noqa: F811
    """As where the entry of a run of other settings was deleted, but not its score."""
    folder = tmp_path / "study"
    studies.run_study(STUDY, folder, program)
    variants = (folder / "variants.json").read_bytes()
    other = dataclasses.replace(STUDY, title="Other", settings={"epochs": 5})
    with pytest.raises(StudyError, match="(?s)other settings.*and its scores in tuning.json, or"):
        studies.run_study(other, folder, program)
    shutil.rmtree(folder / "tuning")
    (folder / "study.json").unlink()
    with pytest.raises(StudyError, match="tuning.json has a score of tuning/A/rate_1.0/seed0, of"):
        studies.run_study(other, folder, program)
    assert (folder / "variants.json").read_bytes() == variants


def test_what_went_on_is_not_compared_after_fewer_rounds(tmp_path, program):  # noqa: F811
    studies.run_study(STUDY, tmp_path / "study", program)
    other = dataclasses.replace(STUDY, tuning=dataclasses.replace(TUNING, seeds=(0, 1)))
    count = len(started(program))
    with pytest.raises(StudyError, match="rate_4.0/seed0 has done 5 rounds: .* after 1 "):
        studies.run_study(other, tmp_path / "study", program)
    assert len(started(program)) == count


def test_what_the_runs_have_is_told_as_chosen(tmp_path, program):  # noqa: F811
    """Not what a trial that failed at first has reached since."""
    study = Study("S", {"A": Variant("a.py", trials=grid({"rate": (1.0, 2.0)}))}, tuning=TUNING)
    folder = tmp_path / "study"
    studies.run_study(study, folder, program)
    assert chosen_trials(study, folder) == {"A": "rate 2.0"}
    scores = json.loads((folder / "tuning.json").read_text())
    scores["A"]["personalized/accuracy, 1 rounds"]["rate 1.0"] = 9.0
    scores["A"]["personalized/accuracy, 5 rounds"] = {"rate 1.0": 9.0}
    scores["A"]["personalized/accuracy, 9 rounds"] = {"rate 1.0": 9.0}
    (folder / "tuning.json").write_text(json.dumps(scores))
    assert Scores(study, folder).chosen() == {"A": "rate 1.0"}
    with pytest.raises(StudyError, match="A/seed0 is a run of other settings"):
        studies.run_study(study, folder, program)
    assert chosen_trials(study, folder) == {"A": "rate 2.0"}
    assert json.loads((folder / "variants.json").read_text())["chosen"] == {"A": "rate 2.0"}


def test_where_all_trials_diverged_nothing_is_chosen(tmp_path, program, capsys):  # noqa: F811
    rates = grid({"rate": (math.inf, -math.inf)})
    study = Study("S", {"A": Variant("a.py"), "B": Variant("b.py", trials=rates)}, tuning=TUNING)
    assert studies.run_study(study, tmp_path / "study", program) == []
    assert Scores(study, tmp_path / "study").chosen() == {"A": "rate 3.0"}
    assert "B: no trial has a finite score" in "".join(capsys.readouterr())


def test_what_was_tried_as_a_table(tmp_path, program):  # noqa: F811
    studies.run_study(STUDY, tmp_path / "study", program)
    path = tmp_path / "tuning.csv"
    studies.write_scores(path, Scores(STUDY, tmp_path / "study"))
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert rows[0] == {
        "label": "A",
        "trial": "rate 1.0",
        "rounds": "1",
        "score": "1.0",
        "chosen": "False",
    }
    assert json.loads((tmp_path / "study/tuning.json").read_text()).keys() == {"A"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": []}, "Tuning has a trial, or more"),
        (
            {"trials": {"rate": (1.0, 2.0)}},
            "settings in a list as grid and draws make them, or a Search, got {",
        ),
        (
            {"trials": iter(RATES)},
            "settings in a list as grid and draws make them, or a Search, got <",
        ),
        (
            {"trials": "rate"},
            "settings in a list as grid and draws make them, or a Search, got 'rate'",
        ),
        ({"trials": ["rate"]}, r"settings in a list .*, got \['rate'\]"),
        ({"seeds": ()}, "Tuning has one seed or more"),
        ({"rounds": (5, 2)}, r"rounds increase from 1 or more, .* got \(5, 2\)"),
        ({"rounds": (0, 2)}, "rounds increase from 1"),
        ({"rounds": 5}, "whole numbers in a tuple, got 5"),
        ({"rounds": (2.5,)}, "whole numbers in a tuple"),
        ({"metric": "personal/accuracy"}, "'personal'. Did you mean 'personalized'"),
        ({"metric": "global/acuracy"}, "'acuracy'. Did you mean 'accuracy'"),
    ],
)
def test_tuning_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tuning(**{"trials": RATES, **arguments})


def test_what_draws_nothing():
    with pytest.raises(ValueError, match="The values of 'b' are drawn by a function, .* got 3"):
        draws({"a": studies.one_of(1, 2), "b": 3}, 2)


def test_a_variant_without_a_trial():
    with pytest.raises(ValueError, match="A variant has a trial, or more"):
        Variant("a.py", trials=[])


@pytest.mark.parametrize(
    ("variant", "tuning", "message"),
    [
        (Variant("a.py", trials=RATES), None, "'A' has trials, but the study has no tuning"),
        (Variant("a.py", trials=[{"a.rate": 1}, {"b.rate": 1}]), TUNING, "'rate 1' needs a name"),
        (Variant("a.py", trials=[{"rounds": 3}, {"rounds": 4}]), TUNING, "Trials of 'A' have 'rou"),
        (Variant("a.py", {"privacy.epsilon": 2.0}), TUNING, "made for a number of rounds"),
    ],
)
def test_trials_that_cannot_be(variant, tuning, message):
    with pytest.raises(ValueError, match=message):
        Study("t", {"A": variant}, tuning=tuning)


def test_names_of_trials_tell_them_apart():
    trials = [{}, {"a.x": 1, "b.x": 2}, {"a.x": 2, "b.x": 1}, {"c.y": 1}]
    study = Study("t", {"A": Variant("a.py")}, tuning=Tuning(trials))
    assert list(study.trials("A")) == ["as it is", "a.x 1, b.x 2", "a.x 2, b.x 1", "y 1"]


def test_what_is_drawn_twice_is_tried_once():
    trials = draws({"rate": studies.one_of(0.1, 0.2)}, 5)
    study = Study("t", {"A": Variant("a.py")}, tuning=Tuning(trials))
    assert sorted(study.trials("A")) == ["rate 0.1", "rate 0.2"]


def test_scores_that_are_damaged(tmp_path):
    (tmp_path / "tuning.json").write_text("[]")
    with pytest.raises(OutputDirectoryError, match="tuning.json is damaged: a JSON object"):
        Scores(STUDY, tmp_path)


def test_examples_that_settings_were_chosen_with(tmp_path, program, capsys):  # noqa: F811
    """Of the table's seeds 3 and 4, where the tuning's is 0; of 10 examples and two clients."""

    def write(folder, train, validation, test):
        (tmp_path / folder).mkdir(parents=True)
        parts = ([np.array(rows) for rows in clients] for clients in (train, validation, test))
        Partition(*map(tuple, parts)).save(str(tmp_path / folder / "partition.npz"))

    for rate in (1.0, 2.0, 3.0, 4.0):
        write(f"tuning/A/rate_{rate}/seed0", [[0, 1], [2]], [[3], []], [[4, 5], [6, 7, 8, 9]])
    write("A/seed3", [[4, 5, 6, 7], [8]], [[], []], [[0, 9], [3, 1]])
    write("A/seed4", [[0, 1], [2, 3]], [[], []], [[4, 5], [6, 7]])
    assert shares_chosen_with(STUDY, tmp_path, {"B": "rate 5.0"}) == {}  # there are none
    assert shares_chosen_with(STUDY, tmp_path, {"B": "rate 5.0", "A": "rate 1.0"}) == {3: 0.75}
    write("tuning/B/rate_5.0/seed0", [[0, 1], [2]], [[3], []], [[4, 5], [6, 7, 8, 9]])
    write("B/seed3", [[0, 1], [2]], [[], []], [[4, 5], [6]])  # shares none, and is first
    assert shares_chosen_with(STUDY, tmp_path, {"B": "rate 5.0", "A": "rate 1.0"}) == {3: 0.75}
    studies.run_study(STUDY, tmp_path, program)
    assert "of the test examples, 75% of seed 3 are among" in "".join(capsys.readouterr())

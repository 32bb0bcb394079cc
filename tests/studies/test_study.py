"""Tests the runs, trials and files of studies, and the mistakes that are refused."""

import numpy as np
import pytest

from tests.marks import together
from tests.runs import ROOT
from tff_pfl import studies
from tff_pfl.studies import Search, Study, Tuning, Variant, draws, grid, load_study
from tff_pfl.studies.study import trial_name

STUDY = Study(
    "Two",
    {
        "FedAvg": Variant("configs/digits.py:fedavg"),
        "Ditto, lambda 1": Variant("configs/digits.py:ditto", {"algorithm.lambda_": 1.0}),
    },
    seeds=(0, np.int64(7)),
    settings={"rounds": 3, "algorithm.lambda_": 2.0},
)
RATES = grid({"rate": (1.0, 4.0)})
RATE = studies.uniform(0.1, 1.0)


def test_study_has_runs_for_each_seed_and_variant():
    runs = list(STUDY.runs())
    assert [(run.label, run.seed) for run in runs] == [
        ("FedAvg", 0),
        ("Ditto, lambda 1", 0),
        ("FedAvg", 7),
        ("Ditto, lambda 1", 7),
    ]
    assert [run.folder for run in runs[1::2]] == ["Ditto_lambda_1/seed0", "Ditto_lambda_1/seed7"]
    assert runs[3].flags == (
        "--config=configs/digits.py:ditto",
        "--config.rounds=3",
        "--config.algorithm.lambda_=1.0",  # its own, not the study's
        "--config.seed=7",
    )


@pytest.mark.parametrize(
    ("config", "second"),
    [
        ("a.py", "a.py:ditto"),
        ("a.py:cifar10,25", "a.py:cifar10,25,ditto"),
        ("a.py:dir,METHOD,50", "a.py:dir,ditto,50"),
    ],
)
def test_methods_of_one_config_are_a_study(config, second):
    study = studies.study_of_methods(config, ["local", "ditto"], range(2), {"rounds": "3"})
    assert [run.folder for run in study.runs()] == [
        *("local/seed0", "ditto/seed0", "local/seed1", "ditto/seed1")
    ]
    last = list(study.runs())[-1]
    assert last.flags == (f"--config={second}", "--config.rounds=3", "--config.seed=1")


def test_trials_have_runs_on_validation_data():
    tuning = Tuning(RATES, {"data.fractions": (0.6, 0.1, 0.3)}, rounds=(1, 5), seeds=(2, 3))
    variants = {"A": Variant("a.py"), "B": Variant("b.py", trials=[{}])}
    study = Study("t", variants, settings={"x": 1}, tuning=tuning)
    runs = list(study.tuning_runs("A", RATES[1], 5))
    assert [run.folder for run in runs] == [f"tuning/A/rate_4.0/seed{seed}" for seed in (2, 3)]
    assert [run.rounds for run in runs] == [5, 5]
    assert runs[0].flags[1:] == (
        "--config.x=1",
        "--config.data.fractions=(0.6, 0.1, 0.3)",
        "--config.rate=4.0",
        "--config.evaluation.split=validation",
        "--config.seed=2",
    )
    (chosen,) = study.runs({"A": RATES[1]})
    assert (chosen.folder, chosen.flags[2]) == ("A/seed0", "--config.rate=4.0")
    assert [study.is_tuned(label) for label in "AB"] == [True, False]


def test_grid_and_draws_have_values_in_range():
    assert grid({"a": (1, 2), "b": ("x",)}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert grid({}) == [{}]
    values = {
        "rate": studies.log_uniform(1e-3, 1.0),
        "share": studies.uniform(0.25, 0.5),
        "name": studies.one_of("x", "y"),
        "low": studies.uniform(1.004, 2.0),
        "high": studies.log_uniform(0.99, 0.9996),
    }
    trials = draws(values, 2000, seed=1)
    assert trials[:50] == draws(values, 50, seed=1) != draws(values, 50, seed=2)
    rates, shares, names, low, high = (np.array([trial[key] for trial in trials]) for key in values)
    assert 1e-3 <= rates.min() < 2e-3 and 0.9 < rates.max() <= 1
    assert np.median(rates) == pytest.approx(10**-1.5, rel=0.2)
    assert shares.min() >= 0.25 and shares.max() <= 0.5
    assert np.mean(shares) == pytest.approx(0.375, abs=0.01)
    assert 900 < np.sum(names == "x") < 1100
    assert all(len(f"{share}") <= 5 for share in shares)  # three digits
    assert low.min() >= 1.004 and high.max() == 0.9996  # rounding stays between the bounds


def test_trials_have_unique_names_without_duplicates():
    trials = [{}, {"a.x": 1, "b.x": 2}, {"a.x": 2, "b.x": 1}, {"c.y": 1}, {"c.y": 1}]
    study = Study("t", {"A": Variant("a.py")}, tuning=Tuning(trials))
    names = [trial_name(trial) for trial in study.trials("A")]
    assert names == ["as it is", "a.x 1, b.x 2", "a.x 2, b.x 1", "y 1"]


def study_of(variant, tuning=None, **options):
    return Study("t", {"A": variant}, tuning=tuning, **options)


@together(
    ("make", "message"),
    [
        (lambda: study_of(Variant("x"), seeds=()), "at least one variant and one seed"),
        (lambda: study_of(Variant("x", {"seed": 1})), "the study sets the seeds of its runs"),
        (lambda: study_of(Variant("x"), baseline="a"), "Unknown baseline 'a'. Valid: 'A'"),
        (
            lambda: Study("t", {"a b": Variant("x"), "a,b": Variant("y")}),
            "share the folder 'a_b/seed0'",
        ),
        (lambda: Tuning(RATES, rounds=(5, 2)), r"rounds must increase, got \(5, 2\)"),
        (lambda: Tuning(RATES, metric="personal/accuracy"), "metric 'personal'"),
        (lambda: study_of(Variant("x", trials=RATES)), "has trials, but the study has no tuning"),
        (
            lambda: study_of(Variant("x", trials=[{"a.rate": 1}, {"b.rate": 1}]), Tuning(RATES)),
            "2 runs would share the folder 'tuning/A/rate_1/seed0'",
        ),
        (
            lambda: study_of(Variant("x"), Tuning([{"rounds": 3}], rounds=(1, 2))),
            r"settings of 'A' have 'rounds', but its tuning has rounds=\(1, 2\) too",
        ),
        (
            lambda: study_of(Variant("x", {"privacy.epsilon": 2.0}), Tuning(RATES, rounds=(1, 2))),
            "the noise for one number of rounds",
        ),
        (lambda: Search({"rate": RATE}, number=0), "number must be a whole number"),
        (lambda: studies.uniform(1.0, 0.1), "low=1.0, high=0.1"),
    ],
)
def test_mistakes_in_studies_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("import no_such_module", ValueError, r"study.py fails: ModuleNotFoundError: .*, line 1\)"),
        ("def get_study():\n  return {}['a']", ValueError, r"fails: KeyError: 'a' .*py, line 2\)"),
        (None, FileNotFoundError, "There is no study"),
        ("def get_study(): return 3", ValueError, "must return a Study, got 3"),
        ("get_config = None", ValueError, r"does not define get_study\(\)"),
    ],
)
def test_mistakes_in_files_of_studies_are_refused(tmp_path, content, error, message):
    path = tmp_path / "study.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message):
        load_study(path)


def test_file_may_define_several_studies(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "study.py"
    path.write_text(
        "from tff_pfl.studies import Study, Variant\n"
        "def get_study(choice): return Study(choice, {'a': Variant('x')})"
    )
    assert load_study("~/study.py:two,three").title == "two,three"


def test_studies_of_the_repository_load():
    choices = {"pfedmb_moon.py": (":pairs", ":two_classes", ":dirichlet")}
    files = sorted((ROOT / "configs/studies").glob("*.py"))
    assert len(files) > 10
    for file in files:
        for choice in choices.get(file.name, ("",)):
            study = load_study(f"{file}{choice}")
            runs = {run.folder for run in study.runs()}
            assert len(runs) == len(study.variants) * len(study.seeds)
            for variant in study.variants.values():
                assert (ROOT / variant.config.partition(":")[0]).is_file()

"""Searches: what Vizier makes of trials so far, and what a study makes of Vizier."""

import dataclasses
import json
import math
import random
import shutil

import numpy as np
import pytest

from tests.studies.test_studies import program, started  # noqa: F401
from tff_pfl import studies
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.studies import Scores, Search, Study, StudyError, Tuning, Variant, runner
from tff_pfl.studies.runner import chosen_trials
from tff_pfl.studies.search import _finite

VALUES = {
    "rate": studies.log_uniform(0.001, 1.0),
    "share": studies.uniform(0.0, 1.0),
    "epochs": studies.one_of(10, 1, 5),
    "kind": studies.one_of("plain", ("a", "b"), True),
}
SEARCH = Search({"rate": studies.log_uniform(1.0, 9.0)}, number=5)
STUDY = Study("Found", {"A": Variant("a.py")}, seeds=(3,), tuning=Tuning(SEARCH))


@pytest.fixture
def suggested(monkeypatch):
    """Replaces Vizier: rates are 8, 7, 6, and so on; what each search was told is in the list."""
    told = []

    def suggest(self, tried, number):
        told.append(list(tried))
        return [{"rate": 8.0 - len(tried) - i} for i in range(number)]

    monkeypatch.setattr(Search, "suggest", suggest)
    return told


def score(parameters):
    """The highest at the rate 10^-1.5 and the share 0.3, of the first kind."""
    distance = math.log10(parameters["rate"]) + 1.5
    return -(distance**2) - 4 * (parameters["share"] - 0.3) ** 2 - (parameters["kind"] != 0)


@pytest.fixture
def compiles_fast():
    """The compiler takes most of the time of a search that is not long."""
    jax = pytest.importorskip("jax")
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)


@pytest.mark.usefixtures("compiles_fast")
def test_vizier_searches_where_scores_are_high():
    pytest.importorskip("equinox", reason="packs for GPU machines lack what Vizier searches with")
    search, rng = Search(VALUES, number=20), np.random.default_rng(0)
    tried = []
    for _ in range(14):
        numbers = {key: VALUES[key](rng) for key in ("rate", "share")}
        tried.append(numbers | {key: int(rng.integers(3)) for key in ("epochs", "kind")})
    tried = [(parameters, score(parameters)) for parameters in tried]
    # What diverged is no reason to search anywhere else.
    tried.append(({"rate": 0.9, "share": 0.95, "epochs": 0, "kind": 2}, -math.inf))
    before = random.getstate()
    found = search.suggest(tried, 2)
    assert search.suggest(tried, 1) == found[:1]  # of the same, the same
    assert random.getstate() == before
    assert found[0] != found[1]
    assert min(map(score, found)) > np.quantile([score for _, score in tried], 2 / 3)
    for parameters in map(json.loads, map(json.dumps, found)):
        settings = search.settings(parameters)
        assert settings.keys() == VALUES.keys()
        for key in ("rate", "share"):
            assert settings[key] == float(f"{settings[key]:.3g}")
        assert 0.001 <= settings["rate"] <= 1 and 0 <= settings["share"] <= 1
        assert settings["epochs"] in (10, 1, 5) and isinstance(settings["epochs"], int)
        assert settings["kind"] in ("plain", ("a", "b"), True)


@pytest.mark.parametrize(
    ("scores", "finite"),
    [
        ([0.5, None, 0.9, -math.inf, math.nan], [0.5, 0.1, 0.9, 0.1, 0.1]),
        ([0.5, None], [0.5, -0.5]),
        ([None, -math.inf], [-1.0, -1.0]),
        ([], []),
    ],
)
def test_what_has_no_score_counts_as_low(scores, finite):
    assert _finite(scores) == pytest.approx(finite)


def test_the_first_trial_is_the_centre():
    pytest.importorskip("equinox", reason="packs for GPU machines lack what Vizier searches with")
    (first,) = Search(VALUES, number=2).suggest([], 1)
    assert (first["rate"], first["share"]) == (pytest.approx(0.0316, abs=1e-4), 0.5)


def test_each_trial_follows_from_the_scores_before(tmp_path, program, suggested):  # noqa: F811
    assert studies.run_study(STUDY, tmp_path / "study", program) == []
    # The score is 3 (10 - rate): the lowest rate is the best. The first two come together.
    scored = [({"rate": rate}, 3 * (10 - rate)) for rate in (8.0, 7.0, 6.0, 5.0, 4.0)]
    assert suggested == [[], scored[:2], scored[:3], scored[:4]]
    trials = [
        f"--config=a.py rate={rate} evaluation.split=validation seed=0" for rate in range(4, 9)
    ]
    assert [x.replace(".0 ", " ") for x in started(program)] == sorted(
        ["--config=a.py rate=4 seed=3", *trials]
    )
    scores = Scores(STUDY, tmp_path / "study")
    assert scores.chosen() == {"A": "rate 4.0"}
    assert [row[1] for row in scores.rows()] == [f"rate {rate}.0" for rate in (8, 7, 6, 5, 4)]
    assert chosen_trials(STUDY, tmp_path / "study") == {"A": "rate 4.0"}
    # Once more: nothing is searched, or run. Raised, the number goes on from there.
    assert studies.run_study(STUDY, tmp_path / "study", program) == []
    assert len(suggested) == 4 and len(started(program)) == 6
    shutil.rmtree(tmp_path / "study/A")
    longer = dataclasses.replace(STUDY, tuning=Tuning(dataclasses.replace(SEARCH, number=6)))
    studies.run_study(longer, tmp_path / "study", program)
    assert suggested[4:] == [scored]
    assert chosen_trials(longer, tmp_path / "study") == {"A": "rate 3.0"}


def test_a_search_goes_on_from_trials_that_were_chosen_but_not_run(
    tmp_path,
    program,  # noqa: F811
    suggested,
):
    studies.run_study(STUDY, tmp_path / "a", program)
    found = started(program)
    (tmp_path / "b").mkdir()
    record = json.loads((tmp_path / "a/searched.json").read_text())
    del record["A"]["parameters"][3:]
    (tmp_path / "b/searched.json").write_text(json.dumps(record))
    del suggested[:]
    studies.run_study(STUDY, tmp_path / "b", program)
    assert list(map(len, suggested)) == [3, 4]
    assert started(program) == sorted(found * 2)
    for name in ("searched.json", "tuning.json"):
        assert (tmp_path / "b" / name).read_text() == (tmp_path / "a" / name).read_text()


def test_variants_search_for_themselves_and_side_by_side(tmp_path, program, suggested):  # noqa: F811
    pairs = dataclasses.replace(SEARCH, at_a_time=3)
    variants = {
        "A": Variant("a.py"),
        "B": Variant("b.py", trials=pairs),
        "C": Variant("c.py", trials=[{"rate": 1.0}, {"rate": 2.0}]),
    }
    tuning = Tuning(SEARCH, seeds=(0, 1), metric="personalized/loss")
    study = dataclasses.replace(STUDY, variants=variants, tuning=tuning)
    assert studies.run_study(study, tmp_path / "study", program, jobs=2) == []
    # Of A two, of B three; then of A one, of B two; of A one and one. Less loss is better.
    assert [len(tried) for tried in suggested] == [0, 0, 2, 3, 3, 4]
    assert suggested[2] == [({"rate": 8.0}, 6.0), ({"rate": 7.0}, 9.0)]
    assert len(Scores(study, tmp_path / "study").rows()) == 12
    assert Scores(study, tmp_path / "study").chosen() == {
        "A": "rate 4.0",
        "B": "rate 4.0",
        "C": "rate 1.0",
    }


def test_trials_that_fail_or_diverge_have_no_score(tmp_path, program, monkeypatch):  # noqa: F811
    told, rates = [], [1e308, 5.0, 2.0, 5.0, 3.0]

    def suggest(self, tried, number):
        told.append([score for _, score in tried])
        return [{"rate": rate} for rate in rates[len(tried) :][:number]]

    monkeypatch.setattr(Search, "suggest", suggest)
    bars = []
    monkeypatch.setattr(runner.tqdm, "tqdm", lambda **kwargs: bars.append(Bar(**kwargs)) or bars[0])
    fails = Variant("b.py", {"fails": True})
    study = dataclasses.replace(STUDY, variants={"A": Variant("a.py"), "B": fails})
    failed = studies.run_study(study, tmp_path / "study", program)
    # Equal trials are one run. Where all trials have failed, the search waits.
    assert [tried for tried in told if tried] == [
        [-math.inf, 15.0],
        [-math.inf, 15.0, 24.0],
        [-math.inf, 15.0, 24.0, 15.0],
    ]
    assert len(failed) == len({run.folder for run in failed}) == 2
    assert len([x for x in started(program) if "b.py" in x]) == 2
    assert Scores(study, tmp_path / "study").chosen() == {"A": "rate 2.0"}
    assert bars[0].n == bars[0].total == 4 + 2 + 1  # trials of A, of B, and A's run of the table
    # Once they succeed, the search goes on.
    text = program.read_text()
    program.write_text(text.replace('"config.fails"', '"config.no"'))
    del told[:]
    studies.run_study(study, tmp_path / "study", program)
    assert told[0] == [-math.inf, 15.0] and len(told) == 3
    assert Scores(study, tmp_path / "study").chosen() == {"A": "rate 2.0", "B": "rate 2.0"}


class Bar:
    """Takes the place of a progress bar, and counts."""

    def __init__(self, total, **kwargs):
        self.n, self.total = 0, total

    def update(self, number=1):
        self.n += number

    def write(self, message):
        pass

    set_postfix_str = refresh = close = lambda self, *args: None


def test_equal_first_trials_are_run(tmp_path, program, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Search, "suggest", lambda self, tried, number: [{"rate": 2.0}] * number)
    studies.run_study(STUDY, tmp_path, program)
    assert Scores(STUDY, tmp_path).rows() == [("A", "rate 2.0", None, 24.0, True)]


def test_trials_of_another_search_are_refused(tmp_path, program, suggested):  # noqa: F811
    studies.run_study(STUDY, tmp_path, program)
    other = Search({"rate": studies.uniform(1.0, 9.0)}, number=5)
    study = dataclasses.replace(STUDY, tuning=Tuning(other))
    for read in (Scores, chosen_trials):
        with pytest.raises(
            StudyError, match="trials of another search for 'A',\n.*True.*\nand not"
        ):
            read(study, tmp_path)
    with pytest.raises(StudyError, match="Delete it, or give another output directory"):
        studies.run_study(study, tmp_path, program)
    record = json.loads((tmp_path / "searched.json").read_text())["A"]
    for damaged in (3, {}, record | {"parameters": [{}]}, record | {"parameters": 5}):
        (tmp_path / "searched.json").write_text(json.dumps({"A": damaged}))
        with pytest.raises(OutputDirectoryError, match="searched.json is damaged"):
            studies.run_study(STUDY, tmp_path, program)


def test_trials_of_variants_that_are_left_out_for_a_while_are_kept(tmp_path, program, suggested):  # noqa: F811
    two = dataclasses.replace(STUDY, variants={"A": Variant("a.py"), "B": Variant("b.py")})
    studies.run_study(two, tmp_path, program)
    longer = dataclasses.replace(STUDY, tuning=Tuning(dataclasses.replace(SEARCH, number=6)))
    with pytest.raises(StudyError, match="is a run of other settings"):  # the sixth is better
        studies.run_study(longer, tmp_path, program)
    assert len(suggested) == 9
    studies.run_study(two, tmp_path, program)
    assert len(suggested) == 9


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ModuleNotFoundError("x", name="equinox"),
            "search without 'equinox', which is not installed",
        ),
        (RuntimeError("Pythia"), "Vizier finds no next trial of 'A': Pythia"),
    ],
)
def test_what_vizier_lacks_or_meets_is_an_error_of_the_study(
    tmp_path,
    program,  # noqa: F811
    monkeypatch,
    error,
    message,
):
    def suggest(self, tried, number):
        raise error

    monkeypatch.setattr(Search, "suggest", suggest)
    with pytest.raises(StudyError, match=message):
        studies.run_study(STUDY, tmp_path, program)


def test_searches_that_make_no_sense_are_refused():
    rate = studies.uniform(0.1, 1.0)
    with pytest.raises(ValueError, match="number must be a whole number of at least 2, got 1"):
        Search({"rate": rate}, number=1)
    for wrong in ({"rate": (1, 2), "share": rate}, {}, [rate]):
        with pytest.raises(ValueError, match="values by keys of the config, .*, got [{[]"):
            Search(wrong, number=3)
    for least, most in ((0.1, math.inf), ("a", 1)):
        with pytest.raises(ValueError, match="must be a finite number, got"):
            studies.uniform(least, most)
    with pytest.raises(ValueError, match="needs a name of letters or digits of its own"):
        names = Search({"kind": studies.one_of("a b", "a,b")}, number=3)
        dataclasses.replace(STUDY, tuning=Tuning(names))
    with pytest.raises(ValueError, match="from less to more, got 1.0 to 0.1"):
        studies.uniform(1.0, 0.1)
    with pytest.raises(ValueError, match="One of no values"):
        studies.one_of()
    with pytest.raises(ValueError, match="'A' has a search, .* tuning has \\(1, 5\\)"):
        dataclasses.replace(STUDY, tuning=Tuning(SEARCH, rounds=(1, 5)))
    with pytest.raises(ValueError, match="Settings cannot have 'seed'"):
        dataclasses.replace(STUDY, tuning=Tuning(Search({"seed": rate}, number=3)))

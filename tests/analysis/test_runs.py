"""Tests how runs are found by name, and how they are labelled."""

import json
import re

import pytest

from tests.analysis.hand_written import write_run
from tff_pfl.analysis import read
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.studies import Study, Variant


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes runs with the seeds 0, 1, 2, ... and a study of two variants; one has begun."""
    root = tmp_path_factory.mktemp("runs")
    names = ("quickstart", "a/ditto", "b/ditto", "c:d", "e/A_1/seed5", "e/A_1/seed6")
    for seed, name in enumerate(names):
        write_run(root / name, [0.5], seed=seed)
    write_run(root / "study/Ditto/seed7", [0.5], seed=7, finished=False)
    study = Study("Two", {"FedAvg": Variant("x"), "Ditto": Variant("y")}, seeds=(7, 8))
    record = study.record() | {"chosen": {"Ditto": "rate 1"}, "flags": {}}
    (root / "study/study.json").write_text(json.dumps(record))
    (root / "damaged").mkdir()
    (root / "damaged/study.json").write_text("{}")
    return root


@pytest.mark.parametrize(
    ("source", "folders"),
    [
        (["a/ditto/", "./quickstart"], {"ditto": ["a/ditto"], "quickstart": ["quickstart"]}),
        (["x:a/ditto", "x:b/ditto"], {"x": ["a/ditto", "b/ditto"]}),
        (["best: x:a/ditto", "c:d"], {"best: x": ["a/ditto"], "c:d": ["c:d"]}),
        ("e/A_1", {"A_1": ["e/A_1/seed5", "e/A_1/seed6"]}),
        ({"A": ["a/ditto"], "B": "b/ditto"}, {"A": ["a/ditto"], "B": ["b/ditto"]}),
        (
            ["quickstart", "study"],
            {"quickstart": ["quickstart"], "FedAvg": [], "Ditto": ["study/Ditto/seed7"]},
        ),
    ],
    ids=str,
)
def test_runs_are_labelled_by_folder_or_name(folder, monkeypatch, source, folders):
    monkeypatch.chdir(folder)
    found = read(source)
    assert {label: list(map(str, paths)) for label, paths in found.folders.items()} == folders
    assert list(found.folders) == list(folders)


def test_runs_named_by_what_they_are_have_the_label_of_their_folder(tmp_path):
    """Leaves out a run that failed before its first round."""
    failed = write_run(tmp_path / "Ditto/seed0-00c0ffee", [0.5], seed=0, finished=False)
    (failed / "metrics.csv").write_text("round\n")
    good = write_run(tmp_path / "Ditto/seed0-f13f00cd", [0.5], seed=0)
    assert read(tmp_path / "Ditto").folders == {"Ditto": [good]}


def test_study_has_title_baseline_and_planned_runs(folder):
    found = read(folder / "study")
    assert (found.title, found.baseline, found.chosen) == ("Two", "FedAvg", {"Ditto": "rate 1"})
    assert found.planned == {"FedAvg": 2, "Ditto": 2}
    assert found.finished.folders == {"FedAvg": [], "Ditto": []}
    more = read([folder / "quickstart", folder / "study"])
    assert (more.title, more.baseline) == ("quickstart; Two", "FedAvg")
    assert more.planned == {"quickstart": 1, "FedAvg": 2, "Ditto": 2}
    record = {"title": "Later", "baseline": "Ditto", "variants": {"Ditto": ["Ditto/seed7"]}}
    later = read(folder / "study", record)
    assert (later.title, later.chosen) == ("Later", {"Ditto": "rate 1"})
    assert list(later.folders) == ["Ditto"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["x:a/ditto", "x:a/ditto"], "'x' has two runs with the same seed"),
        ("x:nowhere", "nowhere has no config.json of a run: there is no such folder."),
        ("empty", "empty has no config.json of a run."),
        ("damaged", "study.json is damaged: 'variants'"),
    ],
    ids=str,
)
def test_missing_runs_and_equal_seeds_are_refused(folder, monkeypatch, source, message):
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir(exist_ok=True)
    with pytest.raises(OutputDirectoryError, match=re.escape(message)):
        read(source)

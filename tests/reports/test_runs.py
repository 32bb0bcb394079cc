"""The names that runs are shown by."""

import re

import pytest

from tests.reports.hand_written import write_run
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import named_runs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for seed, path in enumerate(("quickstart", "a/ditto", "b/ditto", "c:d")):
        write_run(tmp_path / path, [0.5], seed=seed)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (["quickstart"], {"quickstart": ["quickstart"]}),
        (["a/ditto/", "./quickstart"], {"ditto": ["a/ditto/"], "quickstart": ["./quickstart"]}),
        (["c:d"], {"c:d": ["c:d"]}),
        (["x:a/ditto", "x:b/ditto"], {"x": ["a/ditto", "b/ditto"]}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_run_without_a_name_has_that_of_its_folder(arguments, runs):
    assert named_runs(arguments) == runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/ditto", "b/ditto"], "'ditto' is the name of several runs, a/ditto, b/ditto. Name"),
        (["ditto:quickstart", "b/ditto"], "'ditto' is the name of several runs, quickstart, b/"),
        (["x:a/ditto", "x:a/ditto"], "'x' is the name of two runs with seed 1"),
        (["a"], "a has no config.json of a run."),
        (["x:nowhere"], "nowhere has no config.json of a run: there is no such folder."),
    ],
)
@pytest.mark.usefixtures("folder")
def test_names_that_are_asked_for(arguments, message):
    with pytest.raises(OutputDirectoryError, match=re.escape(message)):
        named_runs(arguments)

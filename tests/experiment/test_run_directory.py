"""Tests the output directory of a run."""

import json
import os

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.analysis import figures
from tff_pfl.analysis.runs import read as read_runs
from tff_pfl.clients import ClientStateStore
from tff_pfl.datasets import sources
from tff_pfl.experiment import OutputDirectoryError, RunDirectory, check_writable
from tff_pfl.experiment.export import check_folder
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.output.files import whole_file

SETTINGS = {"rounds": 3, "seed": 0, "data": {"name": "digits", "data_dir": ""}}


def start(path, settings=None, **options):
    with RunDirectory(path, settings or SETTINGS, **options) as directory:
        return directory


def write_rounds(directory, *rounds):
    with open(directory.file("metrics.csv"), "w") as file:
        file.writelines(f"{line}\n" for line in ("round", *rounds))


def settings_in(path):
    return json.loads((path / "config.json").read_text())


def test_new_directory_has_the_settings(tmp_path):
    start(tmp_path / "a" / "b")
    assert settings_in(tmp_path / "a" / "b") == SETTINGS
    start(tmp_path / "c", resume=True)  # starts a new run, because the directory does not exist


def test_paths_start_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert start("~/run").path == str(tmp_path / "run")
    assert RunFiles("~/run").settings == SETTINGS
    check_writable("~/models")
    with pytest.raises(OutputDirectoryError, match="contains files that do|is not empty"):
        check_folder("~/run")
    with whole_file("~/a.txt") as file:
        file.write("a")
    figures.save(figures.new_figure(), "~/pictures/a.png")
    with ClientStateStore(list, tff.types.to_type([("w", np.float32)]), "~/states"):
        pass
    folders = []
    sources.DATASETS.register("mine")(folders.append)
    sources.load("mine", "~/data")
    assert folders == [str(tmp_path / "data")]
    assert read_runs("~/run").folders == {"run": [tmp_path / "run"]}
    assert {"run", "a.txt", "pictures", "states"} <= set(os.listdir(tmp_path))


def test_directory_is_not_created_or_deleted_before_the_run_starts(tmp_path):
    RunDirectory(tmp_path / "a", SETTINGS)
    assert not (tmp_path / "a").exists()
    start(tmp_path / "b")
    RunDirectory(tmp_path / "b", {"rounds": 7}, overwrite=True)
    assert settings_in(tmp_path / "b") == SETTINGS


def test_run_is_overwritten_only_with_overwrite(tmp_path):
    start(tmp_path)
    metrics, notes = tmp_path / "metrics.csv", tmp_path / "notes.txt"
    for file in (metrics, notes):
        file.write_text("mine")
    with pytest.raises(OutputDirectoryError, match="already contains a run. Pass --resume"):
        start(tmp_path)
    assert metrics.exists()
    start(tmp_path, overwrite=True)
    assert not metrics.exists()
    assert notes.exists()  # not a file of the run


def test_run_that_failed_in_its_first_round_starts_over_with_other_settings(tmp_path):
    directory = start(tmp_path)
    write_rounds(directory)
    start(tmp_path, {"seed": 7}, resume=True)
    assert not directory.has("metrics.csv")
    assert settings_in(tmp_path) == {"seed": 7}


def test_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(OutputDirectoryError, match="files that do not belong to a run .config"):
            start(tmp_path, **options)
    with pytest.raises(OutputDirectoryError, match="is a file, not a directory"):
        start(tmp_path / "thesis.tex")


def test_directory_is_locked_for_other_programs(tmp_path):
    first, second = (RunDirectory(tmp_path / "run", SETTINGS) for _ in range(2))
    first.create()
    with pytest.raises(OutputDirectoryError, match="already contains a run"):
        second.create()
    for options in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(OutputDirectoryError, match="is writing to .* Wait until it ends, or"):
            start(tmp_path / "run", **options)
    first.close()
    start(tmp_path / "run", resume=True)


def test_unfinished_files_of_a_killed_program_are_removed(tmp_path):
    """Covers temporary files and folders, also of TFF's managers, of the program's names."""
    start(tmp_path, files=("metrics.csv", "state"))
    left = ["metrics.csv_temp1234", "state/state_3_temp9999", "config.json.99.tmp"]
    left += ["metrics.csv.99.tmp", "state/round_000002.csv.99.tmp"]
    others = ["notes_temp1234", "state/state_3", "state/state_temp12"]
    for name in left + others:
        (tmp_path / name / "variables").mkdir(parents=True)
    start(tmp_path, files=("metrics.csv", "state"), resume=True)
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in others)
    assert not (tmp_path / "clients").exists()
    start(tmp_path, files=("metrics.csv", "state"), overwrite=True)
    assert not (tmp_path / "state").exists()


def test_run_killed_during_create_can_be_started_again(tmp_path):
    directory = start(tmp_path)
    for names in (["clients"], ["config.json", "clients"]):
        for name in names:
            directory.delete(name)
        (tmp_path / "config.json.tmp").write_text("{")
        for options in ({"resume": True}, {"overwrite": True}):
            start(tmp_path, **options)


def test_run_without_settings_is_neither_resumed_nor_new(tmp_path):
    directory = start(tmp_path)
    directory.delete("config.json")
    table = tmp_path / "clients" / "round_000001.csv"
    table.write_text("a run's")
    for options in ({}, {"resume": True}):
        message = r"contains a run \(clients\) without its config.json.*--overwrite"
        with pytest.raises(OutputDirectoryError, match=message):
            start(tmp_path, **options)
        assert not directory.has("config.json")
    start(tmp_path, overwrite=True)
    assert not table.exists()


def test_run_is_resumed_only_with_its_own_settings(tmp_path):
    write_rounds(start(tmp_path), 1)
    elsewhere = {"name": "digits", "data_dir": "/elsewhere"}
    longer = start(tmp_path, SETTINGS | {"rounds": 9, "data": elsewhere}, resume=True)
    assert settings_in(tmp_path) == SETTINGS
    longer.write_settings()  # now the run continues
    more = RunDirectory(tmp_path, SETTINGS | {"rounds": 12}, resume=True)
    changes = ["rounds: 9 then, 12 now", "data.data_dir: '/elsewhere' then, '' now"]
    assert list(map(str, more.changes)) == changes
    other = SETTINGS | {"seed": 1, "data": {"name": "mnist", "data_dir": ""}, "new": True}
    message = "(?s)seed: 0 then, 1 now.*data.name: 'digits' then, 'mnist' now.*new: None then"
    with pytest.raises(OutputDirectoryError, match=message):
        start(tmp_path, other, resume=True)


def test_resumed_run_keeps_fingerprints(tmp_path):
    prints = {"fingerprints": {"rounds": "digest"}}
    start(tmp_path, SETTINGS | prints)
    assert start(tmp_path, SETTINGS, resume=True).settings == SETTINGS | prints


def test_check_writable_refuses_unwritable_paths(tmp_path, monkeypatch):
    check_writable(tmp_path / "new" / "folder" / "results")
    check_writable("results")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    for path, message in (
        (tmp_path / "file" / "new" / "x", "file/new/x cannot be written: .*file is a file"),
        (f"{tmp_path}/new/", "new/ is a folder. Add a name for the files: .*NAME"),
        (tmp_path / "new" / "x", f"no permission in {tmp_path}"),
    ):
        with pytest.raises(OutputDirectoryError, match=message):
            check_writable(path)


def test_numpy_settings_are_numbers(tmp_path):
    start(tmp_path, {"rounds": np.int64(3), "rate": np.float32(0.5), "shape": np.arange(2)})
    numbers = {"rounds": 3, "rate": 0.5, "shape": [0, 1]}
    assert settings_in(tmp_path) == numbers
    start(tmp_path, numbers, resume=True)

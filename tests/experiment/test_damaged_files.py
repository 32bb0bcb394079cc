"""Tests that damaged files of a run are reported by name and not changed."""

import asyncio
import csv
import json
import resource
import shutil

import numpy as np
import pytest

from tests.experiment.killed import contents_of
from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl.config import run_program
from tff_pfl.experiment import OutputDirectoryError, RunDirectory, RunFiles, read_summary
from tff_pfl.experiment.metrics_log import MetricsLog

BINARY = bytes(range(256))


@pytest.fixture(scope="module")
def finished(finished_run):
    return finished_run(evaluation={"every": 1})


def resume(path, **changes):
    config = tiny_config(evaluation={"every": 1}, **changes)
    return run_program(config, str(path), resume=True)


def with_another_digit(content):
    """Adds one to the last digit from 1 to 8, which keeps the format of the file."""
    place = max(content.rfind(str(digit).encode()) for digit in range(1, 9))
    return content[:place] + bytes([content[place] + 1]) + content[place + 1 :]


def cut(content):
    return content[: len(content) // 2]


def a_list(content):
    return b"[]"


@pytest.fixture
def damaged(finished, tmp_path):
    """Returns `(name, damage) -> file` of a copy of the run, which `damage` changes or removes."""

    def copy(name, damage):
        shutil.copytree(finished, tmp_path / "run")
        file = tmp_path / "run" / name
        if damage is None:
            file.unlink()
        else:
            file.write_bytes(damage(file.read_bytes()))
        return file

    return copy


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [a_list, cut])
def test_damaged_settings_are_refused(damaged, capsys, damage):
    file = damaged("config.json", damage)
    content = file.read_bytes()
    assert resume(file.parent) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {file} is damaged: ")
    assert printed.out == ""
    assert file.read_bytes() == content


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [None, cut, with_another_digit])
def test_missing_or_damaged_summary_is_written_again(finished, damaged, damage):
    file = damaged("summary.json", damage)
    if damage is not None:
        with pytest.raises(OutputDirectoryError, match=f"^{file} is damaged: "):
            read_summary(file.parent)
    assert resume(file.parent) == 0
    assert file.read_bytes() == (finished / "summary.json").read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.csv", None),
        ("metrics.csv", with_another_digit),
        slow("timings.csv", with_another_digit),
        ("clients/round_000001.csv", with_another_digit),
        ("partition.npz", None),
    ],
)
def test_run_with_damaged_files_is_not_resumed(damaged, tmp_path, capsys, name, damage):
    file = damaged(name, damage)
    (tmp_path / "run" / "summary.json").unlink()
    before = contents_of(tmp_path)
    assert resume(tmp_path / "run", rounds=3) == 1
    assert capsys.readouterr().err.startswith(f"error: {file} is ")
    assert contents_of(tmp_path).get(file) == before.get(file)


def release(log, round_num, metrics):
    asyncio.run(log.release(metrics | {"round_seconds": 0.1}, round_num))


def start_log(path, *columns_of_rounds):
    """Writes a log of rounds with these columns; returns `(log, its directory)`."""
    directory = RunDirectory(path, {})
    directory.create()
    log = MetricsLog(directory, 0, {})
    for round_num, columns in enumerate(columns_of_rounds, 1):
        release(log, round_num, {name: round_num / 7 for name in columns})
    return log, directory


def test_columns_after_the_checkpoint_are_dropped_with_their_rows(tmp_path):
    log, directory = start_log(tmp_path, "a", "a")
    released = json.loads(json.dumps(log.released))
    before = (tmp_path / "metrics.csv").read_bytes()
    release(log, 3, {"a": 1.0, "b": 2.0})
    assert (tmp_path / "metrics.csv").read_text().startswith("round,a,b")
    (tmp_path / "metrics.csv").write_bytes((tmp_path / "metrics.csv").read_bytes() + b"4,1.")
    MetricsLog(directory, 2, released)
    assert (tmp_path / "metrics.csv").read_bytes() == before


def test_round_can_be_reopened_twice(tmp_path):
    """Covers a last round with its first row, its second row or no row."""
    log, directory = start_log(tmp_path, "a", "a")
    released = json.loads(json.dumps(log.released_before_the_end(1)))
    for _ in range(2):
        log = MetricsLog(directory, 2, released)
        assert (tmp_path / "metrics.csv").read_text().count("\n") == 2
        log = MetricsLog(directory, 2, released)
        release(log, 2, {"a": 2 / 7, "b": 1.0})
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 3
    assert log.rounds == log.released["rounds"] == 2


def test_only_files_of_uncommitted_rounds_are_deleted(tmp_path):
    log, directory = start_log(tmp_path, "a", "a")
    for round_num in (1, 2):
        log.release_table(f"clients/round_{round_num:06d}.csv", {"loss": np.ones(2)})
        log.release_snapshot(round_num, {"alpha": np.ones(2)})
    released = log.released
    release(log, 3, {"a": 1.0})
    log.release_table("clients/round_000003.csv", {"loss": np.ones(2)})
    log.release_snapshot(3, {"alpha": np.ones(2)})
    kept = ["clients/round_000003.csv.txt", "clients/round_3.csv", "round_000003.csv"]
    for name in kept:
        (tmp_path / name).touch()
    MetricsLog(directory, 2, released)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*round_*")}
    rounds = [f"clients/round_00000{i}.csv" for i in (1, 2)]
    snapshots = [f"snapshots/round_00000{i}.npz" for i in (1, 2)]
    assert names == {*kept, *rounds, *snapshots}


def test_full_disk_error_names_the_tensorboard_folder(tmp_path):
    log, _ = start_log(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        with pytest.raises(OSError, match=f"^{tmp_path / 'tensorboard'}.*File too large$"):
            release(log, 1, {"a": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_damaged_table_of_clients_is_refused(tmp_path):
    path = tmp_path / "clients" / "round_000002.csv"
    path.parent.mkdir()
    for content, reason in {
        b"": "it has no column client_id or num_examples",
        BINARY: "can't decode byte",
        b"client_id,num_examples\n0,5\n1,1": "its last line is cut off",
        b"client_id,num_examples\n0,5\n1\n": "different numbers of cells",
        b"client_id,num_examples\n0,five\n": "could not convert",
    }.items():
        path.write_bytes(content)
        with pytest.raises(OutputDirectoryError, match=f"^{path} is damaged: .*{reason}"):
            RunFiles(tmp_path).clients()


def test_files_with_other_names_are_not_evaluations(tmp_path):
    (tmp_path / "clients").mkdir()
    for name in ("round_10.csv", "round_9.csv", "round_9 (copy).csv", "round_x.csv"):
        with open(tmp_path / "clients" / name, "w", newline="") as file:
            csv.writer(file).writerows([["client_id", "num_examples", "loss"], [0, 1, 0.5]])
    assert RunFiles(tmp_path).evaluated_rounds == [9, 10]


def test_damaged_snapshot_is_refused(tmp_path):
    path = tmp_path / "snapshots" / "round_000001.npz"
    path.parent.mkdir()
    np.savez(path, alpha=np.eye(3))
    good = path.read_bytes()
    for content in (b"", BINARY, cut(good), good.replace(b"<f8", b"<O8")):
        path.write_bytes(content)
        with pytest.raises(OutputDirectoryError, match=f"^{path} is damaged: "):
            RunFiles(tmp_path).snapshots()

"""Files that are there completely, or as they were before."""

import errno
import json
import math
import os

import numpy as np
import pytest

from tff_pfl import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "summary.json"
    files.write_json(path, {"rounds": 3})
    return path


def only_the_old_is_there(path):
    return os.listdir(path.parent) == [path.name] and path.read_text() == '{\n  "rounds": 3\n}\n'


def test_a_whole_file_takes_the_place_of_another(path):
    with files.whole_file(path, "wb") as file:
        file.write(b"new")
        assert path.read_text() != "new"
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("error", [ValueError("not JSON"), KeyboardInterrupt()])
def test_what_fails_in_the_middle_leaves_the_old(path, error):
    with pytest.raises(type(error)), files.whole_file(path) as file:
        file.write("half of")
        raise error
    assert only_the_old_is_there(path)


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_what_fails_at_the_end_leaves_the_old(path, monkeypatch, name):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, full)
    with pytest.raises(OSError, match="No space left on device"):
        files.write_json(path, {"rounds": 4})
    assert only_the_old_is_there(path)


def test_a_full_disk_is_said_of_the_file(path, monkeypatch):
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"), files.writing(path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_two_processes_do_not_write_into_one_file(path, monkeypatch):
    """Each has all of its own; the last one's stays."""
    with files.whole_file(path) as first:
        first.write("the first")
        monkeypatch.setattr(os, "getpid", lambda: 4_194_305)  # more than Linux has
        with files.whole_file(path) as second:
            second.write("2nd")
        assert path.read_text() == "2nd"
    assert path.read_text() == "the first"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="none/summary.json"):
        files.write_json(tmp_path / "none" / "summary.json", {})


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def test_json_is_strict(tmp_path):
    numbers = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -np.float64(math.inf)}, "d": "nan"}
    files.write_json(tmp_path / "x.json", numbers)
    read = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert read == {"a": [None, [None, 1.5]], "b": {"c": None}, "d": "nan"}
    assert json.loads(files.to_json(numbers), parse_constant=refuse) == read


def test_numbers_that_are_spelled_out_are_read_again():
    numbers = {"a": [math.inf, 1.5, "b"], "c": {"d": -math.inf, "e": None}}
    assert files.spelled_out(numbers) == {"a": ["inf", 1.5, "b"], "c": {"d": "-inf", "e": None}}
    assert files.not_spelled_out(files.spelled_out(numbers)) == numbers

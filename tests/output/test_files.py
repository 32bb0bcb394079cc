"""Tests that files are written completely or not at all."""

import errno
import io
import json
import math
import os
import zipfile

import numpy as np
import pyarrow.parquet
import pytest

from tff_pfl.output import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "summary.json"
    files.write_json(path, {"rounds": 3})
    return path


def has_only_the_old_file(path):
    return os.listdir(path.parent) == [path.name] and path.read_text() == '{\n  "rounds": 3\n}\n'


def test_whole_file_replaces_another(path):
    with files.whole_file(path, "wb") as file:
        file.write(b"new")
        assert path.read_text() != "new"
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == [path.name]


def test_interrupted_write_keeps_the_old_file(path):
    with pytest.raises(KeyboardInterrupt), files.whole_file(path) as file:
        file.write("half of")
        raise KeyboardInterrupt
    assert has_only_the_old_file(path)


def test_full_disk_keeps_the_old_file_and_names_it(path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
                files.write_json(path, {"rounds": 4})
        assert has_only_the_old_file(path)


def test_processes_write_separate_temporary_files(path, monkeypatch):
    """Checks that each process writes its own content, and the last one's stays."""
    with files.whole_file(path) as first:
        first.write("the first")
        monkeypatch.setattr(os, "getpid", lambda: 4_194_305)  # larger than any id of Linux
        with files.whole_file(path) as second:
            second.write("2nd")
        assert path.read_text() == "2nd"
    assert path.read_text() == "the first"


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def test_json_is_strict(tmp_path):
    numbers = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -np.float64(math.inf)}, "d": "nan"}
    files.write_json(tmp_path / "x.json", numbers)
    read = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert read == {"a": [None, [None, 1.5]], "b": {"c": None}, "d": "nan"}
    assert json.loads(files.to_json(numbers), parse_constant=refuse) == read


def test_spelled_out_numbers_are_read_again():
    numbers = {"a": [math.inf, 1.5, "b"], "c": {"d": -math.inf, "e": None}}
    assert files.spelled_out(numbers) == {"a": ["inf", 1.5, "b"], "c": {"d": "-inf", "e": None}}
    assert files.not_spelled_out(files.spelled_out(numbers)) == numbers


def test_numpy_reads_compressed_arrays():
    arrays = {
        "ids": np.arange(1000),
        "fortran": np.asfortranarray(np.eye(3, 4, dtype=np.float32)),
        "number": 2.5,
        "text": "a format",
        "nobody": np.zeros([0, 2]),
    }
    ours, again, numpys = io.BytesIO(), io.BytesIO(), io.BytesIO()
    files.save_compressed(ours, arrays)
    files.save_compressed(again, arrays)
    assert again.getvalue() == ours.getvalue()  # the bytes do not depend on the time
    np.savez_compressed(numpys, **arrays)
    found, expected = (np.load(io.BytesIO(file.getvalue())) for file in (ours, numpys))
    assert found.files == expected.files
    for name in found.files:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name])
    ids = zipfile.ZipFile(ours).getinfo("ids.npy")
    assert ids.compress_size < ids.file_size / 4


def test_parquet_keeps_types_and_shapes(tmp_path):
    columns = {
        "label": np.array([2, 0, 1], np.int32),
        "logits": np.arange(12, dtype=np.float32).reshape(3, 4),
        "pairs": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
    }
    files.write_parquet(tmp_path / "x.parquet", columns)
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    logits = pyarrow.list_(pyarrow.float32(), 4)
    assert [table.schema.field(name).type for name in ("label", "logits")] == [
        pyarrow.int32(),
        logits,
    ]
    for name, column in columns.items():
        np.testing.assert_array_equal(np.array(table[name].to_pylist()), column)


def test_home_directory_in_values_of_flags(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    given = ["train.py", "--output_dir=~/runs/x", "--config.data.data_dir=~", "--x=a~/b", "~=~/x"]
    expected = ["train.py", "--output_dir=/home/ann/runs/x", "--config.data.data_dir=/home/ann"]
    assert files.with_home(given) == [*expected, "--x=a~/b", "~=~/x"]


def test_new_folders_are_removed_after_an_error_if_they_are_empty(tmp_path):
    (tmp_path / "old" / "empty").mkdir(parents=True)
    root = tmp_path / "new" / "data"
    for folder in (root, tmp_path / "old"):
        with pytest.raises(OSError, match="offline"), files.without_new_folders(folder):
            (folder / "downloads" / "part").mkdir(parents=True)
            raise OSError("offline")
        assert set(tmp_path.rglob("*")) == {tmp_path / "old", tmp_path / "old" / "empty"}
    with pytest.raises(OSError, match="offline"), files.without_new_folders(root):
        (root / "downloads").mkdir(parents=True)
        (root / "downloads" / "half.zip").write_text("")
        raise OSError("offline")
    assert (root / "downloads" / "half.zip").exists()

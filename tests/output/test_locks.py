"""Tests locks of files."""

import errno
import fcntl
import os

import pytest

from tff_pfl.output.locks import lock


@pytest.mark.parametrize(("first", "second", "both"), [(1, 1, True), (0, 1, False), (1, 0, False)])
def test_locks_may_be_shared(tmp_path, first, second, both):
    with open(tmp_path / "x", "a+") as one, open(tmp_path / "x", "a+") as other:
        lock(one.fileno(), tmp_path, shared=bool(first))
        if both:
            lock(other.fileno(), tmp_path, shared=bool(second))
        else:
            with pytest.raises(BlockingIOError):
                lock(other.fileno(), tmp_path, shared=bool(second))
            one.close()
            lock(other.fileno(), tmp_path, waits=True)


def test_error_of_a_file_system_without_locks(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with open(tmp_path / "x", "w") as file, pytest.raises(OSError) as raised:
        lock(file.fileno(), tmp_path)
    assert str(raised.value) == (
        f"The file system of {tmp_path} has no locks (No locks available), which keep two programs "
        "from writing to one folder. Choose a folder on another file system."
    )

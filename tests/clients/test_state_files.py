"""Tests the files of clients' states: their rounds, their merging, and what is left of kills."""

import pytest

from tff_pfl.clients import CorruptStateError, StateStoreError, state_files
from tff_pfl.clients.parted_store import PARTS, forget_after
from tff_pfl.clients.state_files import StateFiles


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_states_of_each_round_can_be_read(tmp_path):
    files = StateFiles(tmp_path / "new", 0)
    assert files.read([1, 2], 0) == {}
    files.write(1, {1: b"one", 2: b""})
    files.write(3, {1: b"three"})
    for opened in (files, StateFiles(tmp_path / "new", 3)):
        assert opened.read([2, 1, 7], 1) == {1: b"one", 2: b""}
        assert opened.read([1, 2], 2) == {1: b"one", 2: b""}
        assert opened.read([1, 2], 3) == {1: b"three", 2: b""}


def test_rounds_that_are_not_committed_are_ignored_and_written_again(tmp_path):
    StateFiles(tmp_path, 0).write(2, {1: b"lost"})
    files = StateFiles(tmp_path, 1)
    assert files.read([1], 5) == {}
    files.write(2, {1: b"again"})
    assert StateFiles(tmp_path, 2).read([1], 2) == {1: b"again"}


def test_committed_files_are_merged_and_later_ones_stay(tmp_path):
    files = StateFiles(tmp_path, 0)
    for number in range(1, 13):
        files.write(number, {number % 3: b"%d" % number, 100 + number: b"x" * number})
    files.merge(3)
    assert len(names(tmp_path)) == 12  # too few
    files.merge(10)
    expected = ["round_000011.states", "round_000012.states", "upto_000010.states"]
    assert names(tmp_path) == expected
    for opened in (files, StateFiles(tmp_path, 12)):
        assert opened.read([0, 1, 2, 107], 12) == {0: b"12", 1: b"10", 2: b"11", 107: b"x" * 7}
        assert opened.read([0, 1, 2], 10) == {0: b"9", 1: b"10", 2: b"8"}
    files.merge(12)
    assert names(tmp_path) == expected


def test_merging_that_was_killed_leaves_whole_states(tmp_path):
    """Leaves the files before beside the merged one, or the merged one unfinished."""
    files = StateFiles(tmp_path, 0)
    for number in range(1, 10):
        files.write(number, {0: b"%d" % number, number: b"own"})
    copies = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    files.merge(9)
    for name, content in copies.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "upto_000011.states.12.tmp").write_bytes(b"[")
    assert StateFiles(tmp_path, 9).read([0, 4], 9) == {0: b"9", 4: b"own"}


def test_damaged_state_is_refused(tmp_path):
    StateFiles(tmp_path, 0).write(1, {1: b"first", 2: b"second"})
    file = tmp_path / "round_000001.states"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    files = StateFiles(tmp_path, 1)
    assert files.read([1], 1) == {1: b"first"}
    with pytest.raises(CorruptStateError, match="round_000001.states is damaged"):
        files.read([2], 1)
    file.write_bytes(b"[broken\n")
    with pytest.raises(CorruptStateError, match="is damaged"):
        StateFiles(tmp_path, 1)


def test_states_after_the_last_commit_are_deleted(tmp_path):
    for part in ("0000", "0001"):
        for number in (1, 2):
            StateFiles(tmp_path / PARTS / part, 0).write(number, {1: b"state"})
    forget_after(tmp_path, 1)
    assert names(tmp_path / PARTS / "0001") == ["round_000001.states"]


def test_files_that_are_seen_later_are_waited_for(tmp_path, monkeypatch):
    """Writes the newest file of another machine only when the folder is read again."""
    StateFiles(tmp_path, 0).write(1, {1: b"one", 2: b"two"})
    again = state_files._look_again

    def later(folder):
        StateFiles(tmp_path, 0).write(3, {1: b"three"})
        again(folder)

    monkeypatch.setattr(state_files, "_look_again", later)
    assert StateFiles(tmp_path, 3, last=3).read([1, 2], 3) == {1: b"three", 2: b"two"}


def test_folder_that_others_do_not_write_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(state_files, "_PATIENCE", 0)
    with pytest.raises(StateStoreError, match="0003 lacks the states of round 2. Workers must see"):
        StateFiles(tmp_path / "0003", 2, last=2)

"""Marks of records: what each of them says, and that there is one wherever there is a record."""

import pytest

from tff_pfl.clients.records import NO_MARK, Marks, Root, mark_of, record_of, value_of


def test_a_record_has_its_value_under_its_own_key_alone():
    record = record_of(b"key", b"value")
    assert value_of(b"key", record) == value_of(b"key", memoryview(record)) == b"value"
    assert value_of(b"kex", record) is None
    assert value_of(b"key", record[:-1] + b"f") is None


@pytest.mark.parametrize("record", [bytes(4), bytes(4) + b"value", record_of(b"key", b"")])
def test_every_record_has_a_mark(record):
    """One with a checksum of 0, too."""
    assert mark_of(None) == NO_MARK != mark_of(record)
    assert len(mark_of(record)) == len(NO_MARK)


def test_marks_grow_with_the_places_that_are_marked():
    marks = Marks()
    assert (marks.at(0), marks.at(1000), list(marks.places())) == (NO_MARK, NO_MARK, [])
    for place, mark in ((5, b"five"), (2, b"two!"), (5, b"FIVE")):
        marks.put(place, mark)
    assert [marks.at(place) for place in (1, 2, 5, 6)] == [NO_MARK, b"two!", b"FIVE", NO_MARK]
    assert list(marks.places()) == [2, 5] and len(marks) == 24
    root = Root(b"8 bytes.", marks)
    assert Root.of(root.value()) == root

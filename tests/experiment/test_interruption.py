"""Tests how programs end."""

import os
import sys

import pytest

from tff_pfl.experiment import exit_code_of


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_work_goes_on_after_the_reader_of_its_output_has_ended(monkeypatch, stream):
    """Closes the reading end of a pipe, as `head -1` does after a line."""
    reader, writer = os.pipe()
    with open(writer, "w") as file:
        monkeypatch.setattr(sys, stream, file)
        steps = []

        def work():
            for step in range(3):
                print("a line", file=getattr(sys, stream), flush=True)
                steps.append(step)
                if step == 0:
                    os.close(reader)

        assert exit_code_of(work) == 0
        assert steps == [0, 1, 2]
        assert getattr(sys, stream) is file

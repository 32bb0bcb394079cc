"""Tests how programs end."""

import os
import signal
import sys

import pytest

from tff_pfl.config import exit_code_of, interruptible
from tff_pfl.config.interruption import Terminated


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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(28, "No space left on device", "a.csv"), 1, "error: [Errno 28] No space left"),
        (ZeroDivisionError("of a program"), 1, "error: of a program\n"),
        (Terminated(), 143, "\ninterrupted; do it again\n"),
    ],
)
def test_exit_code_of_ends_any_program(capsys, error, code, message):
    def fail():
        raise error

    options = {"errors": [ZeroDivisionError], "advice": lambda: "do it again"}
    assert exit_code_of(fail, **options) == code
    assert capsys.readouterr().err.startswith(message)


def test_second_signal_ends_the_process_at_once():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Terminated), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

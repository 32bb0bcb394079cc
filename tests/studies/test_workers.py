"""Tests which process serves a call, and what remains of calls that end badly."""

import signal
import sys

from tests.studies.calls import cmdline, kill, wait_for_both, write_process
from tff_pfl.studies import Workers


def test_calls_of_a_group_share_a_process_until_a_problem(tmp_path):
    def process(group, problem=None):
        file = tmp_path / "process"
        assert workers.call(group, write_process, file, problem) == problem
        return int(file.read_text())

    with Workers() as workers:
        first, same, other = process("a"), process("a"), process("b")
        assert first == same != other and not cmdline(first)
        assert process("b", "It failed.") == other != process("b")
        assert workers.call("b", kill, signal.SIGKILL) == -signal.SIGKILL
        assert workers.call("b", sys.exit, 0) == 1
        last = process("b")
        assert cmdline(last)
    assert not cmdline(last)


def test_calls_run_at_the_same_time(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    with Workers(2) as workers:
        for file in files:
            workers.start(file.name, "", wait_for_both, *files, file)
        assert workers.calls == ["a", "b"] and not workers.have_room
        ended = workers.wait()
        ended += workers.wait() if workers.calls else []
    assert sorted(ended) == [("a", None), ("b", None)]

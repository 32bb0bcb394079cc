"""Runs a contestant that serves rounds as a process with time limits; see `common.serve`."""

import contextlib
import json
import pathlib
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from benchmarks.contestants import processes

_FOLDER = pathlib.Path(__file__).resolve().parent
_SECONDS_TO_END = 5


class Server:
    """The process of a contestant, which is started again after a request that ran out of time.

    Attributes:
        description: The versions and the device of the contestant, or an `error`.

    Args:
        program: The name of a script in this folder.
        arguments: The arguments of the script.
        python: The Python interpreter that runs it.
        environment: The environment of the process.
        errors: The file for its standard error.
        start_seconds: The time limit until it is ready.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        python: str,
        environment: Mapping[str, str],
        errors: IO[bytes],
        start_seconds: float,
    ):
        """Starts the process, without waiting for it."""
        self._command = [python, str(_FOLDER / program), *arguments]
        self._options = {"env": environment, "stderr": errors}
        self._start_seconds = start_seconds
        self._start()

    def _start(self):
        self._process = None
        self._description = None
        with contextlib.suppress(OSError):  # `_answer` reports it
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                **self._options,
            )

    @property
    def description(self) -> dict[str, Any]:
        """Waits until the contestant is ready."""
        if self._description is None:
            self._description = self._answer(self._start_seconds)
        return self._description

    def round(self, method: str, work: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the figures of one more round, or an `error`.

        Args:
            method: A method of the contestant.
            work: The work of the round.
            seconds: The time limit.
        """
        if "error" in self.description:
            return self.description
        with contextlib.suppress(BrokenPipeError):
            request = json.dumps({"method": method, "work": work})
            self._process.stdin.write(request.encode() + b"\n")
        answer = self._answer(seconds)
        if self._process.poll() is not None:
            self._start()
        return answer

    def close(self) -> None:
        """Ends the process and all processes that it has started."""
        if self._process is not None:
            processes.end(self._process, _SECONDS_TO_END)

    def _answer(self, seconds):
        if self._process is None:
            return {"error": f"{self._command[0]!r} cannot be run."}
        is_late = threading.Event()
        timer = threading.Timer(seconds, lambda: (is_late.set(), processes.kill(self._process)))
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        processes.kill(self._process)
        if is_late.is_set():
            return {"error": f"no answer within {seconds:.0f} s"}
        return {"error": f"the process ended with exit code {self._process.returncode}"}

"""Damages and kills runs, and judges the outcomes.

Each fault must end in one of two ways: the run resumes and has the results of an undisturbed run,
bit for bit; or it is refused with one message that names the file or the directory.
"""

import collections
import functools
import os
import pathlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping

from tests.faults import lives, studies

IDENTICAL, REFUSED, WRONG = "identical", "refused", "wrong"

_KILL_MOMENTS = ("a random moment", "within a commit", "at a call of the system")
_DISTURBED_COMMIT = 4  # of 8: the run then has files of earlier rounds to damage
_COMMIT_SECONDS = 0.02  # a few times as long as a commit


class Tally:
    """The number of trials of each fault, by outcome."""

    def __init__(self):
        self.counts: dict[str, collections.Counter] = {}
        self.wrong: list[str] = []

    def add(self, fault: str, outcome: str, description: str = "") -> None:
        """Counts an outcome; `description` explains a wrong one."""
        self.counts.setdefault(fault, collections.Counter())[outcome] += 1
        if outcome == WRONG:
            self.wrong.append(f"{fault}: {description}")

    def table(self) -> str:
        """Returns a line for each fault, and a line for each wrong outcome."""
        width = max(map(len, self.counts), default=0)
        columns = ("tried", IDENTICAL, REFUSED, WRONG)
        lines = [f"{'':{width}}{''.join(f'{column:>11}' for column in columns)}"]
        for fault, count in self.counts.items():
            numbers = [count.total(), *(count[column] for column in columns[1:])]
            lines.append(f"{fault:{width}}{''.join(f'{number:>11}' for number in numbers)}")
        return "\n".join(lines + [f"WRONG: {description}" for description in self.wrong])


class Faults:
    """Runs in a folder, and the faults that are tried on them."""

    def __init__(self, folder: pathlib.Path, seed: int = 0):
        """Trains an undisturbed run."""
        self.tally = Tally()
        self._folder = folder
        self._random = random.Random(seed)
        self._runs = 0
        whole = self._new_path()
        ended = lives.train(whole).wait()
        if ended.code:
            raise RuntimeError(f"The undisturbed run has ended with {ended}")
        first, last = (whole / name for name in ("partition.npz", "summary.json"))
        self._seconds = last.stat().st_mtime - first.stat().st_mtime
        self._results = lives.results(whole)

    @functools.cached_property
    def _stopped(self):
        """The directory of a run that was killed in the middle."""
        path = self._new_path()
        kill = lives.send(signal.SIGKILL)
        lives.train(path, lives.at_commit(_DISTURBED_COMMIT, kill, after=True)).wait()
        return path

    def kills(self, number: int, each_run: int = 5) -> None:
        """Sends SIGKILLs at random moments, several to a run before it may finish."""
        killed = 0
        while killed < number:
            path, fault, done = self._new_path(), "", []
            while len(done) < min(each_run, number - killed):
                fault, sabotage = self._kill(is_new=not path.exists())
                ended = lives.train(path, sabotage).wait()
                if ended.code != -signal.SIGKILL:
                    break
                done.append(fault)
            else:
                ended = lives.train(path).wait()
            killed += len(done)
            outcome, description = self._judge(path, ended, (IDENTICAL,))
            for fault in done:
                self.tally.add(f"SIGKILL, {fault}", outcome, description)

    def studies(self, number: int) -> None:
        """Kills workers of studies, and studies, at random moments."""
        whole = self._new_path()
        studies.StudyProgram(whole).wait()
        expected, killed = studies.results(whole), 0
        while killed < number:
            path = self._new_path()
            done = studies.disturb(path, self._random, number - killed)
            killed += len(done)
            found = studies.results(path)
            differing = [name for name in expected if found.get(name) != expected[name]]
            for fault in done:
                outcome = WRONG if differing else IDENTICAL
                self.tally.add(fault, outcome, f"{path} differs in {', '.join(differing)}")

    def _kill(self, is_new):
        moment = self._random.choice(_KILL_MOMENTS)
        kill = lives.send(signal.SIGKILL)
        if moment == "a random moment":
            seconds = self._random.uniform(0, self._seconds)
            return moment, lives.after_first_byte(seconds, kill)
        if moment == "within a commit":
            seconds = self._random.uniform(0, _COMMIT_SECONDS)
            commit = self._random.randint(1, 4)
            return moment, lives.at_commit(commit, lambda: lives.later(seconds, kill))
        names = ("fsync", "replace") + is_new * ("rename", "truncate")
        name = self._random.choice(names)
        call = self._random.randint(1, {"fsync": 20, "replace": 8}.get(name, 1))
        return moment, lives.at_call(name, call, kill, after=self._random.random() < 0.5)

    def signals(self, number: int) -> None:
        """Sends SIGTERM and Ctrl-C at random moments, and checks the message and exit code."""
        for index in range(number):
            signal_ = (signal.SIGTERM, signal.SIGINT)[index % 2]
            path = self._new_path()
            seconds = self._random.uniform(0, self._seconds)
            sabotage = lives.after_first_byte(seconds, lives.send(signal_))
            ended = lives.train(path, sabotage).wait()
            message = f"interrupted; pass --resume to continue the run in {path}"
            if ended.code and (ended.code != 128 + signal_ or ended.error != message):
                self.tally.add(signal_.name, WRONG, f"{path} after {seconds} s: {ended}")
            else:
                resumed = lives.train(path).wait()
                self.tally.add(signal_.name, *self._judge(path, resumed, (IDENTICAL,)))

    def damages(self, number: int) -> None:
        """Damages each file of a stopped run in each way, `number` times."""
        for name in sorted(self._files(self._stopped)):
            for damage, apply in self._ways().items():
                for _ in range(number):
                    path = self._copy()
                    apply(path / name)
                    outcome, description = self._judge(path, lives.train(path).wait())
                    self.tally.add(f"a file {damage}", outcome, f"{name}: {description}")

    def _files(self, path) -> Iterator[str]:
        return (str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())

    def _ways(self) -> Mapping[str, Callable[[pathlib.Path], None]]:
        def cut(path):
            os.truncate(path, self._random.randrange(max(path.stat().st_size, 1)))

        def garble(path):
            path.write_bytes(self._random.randbytes(1000))

        return {
            "removed": pathlib.Path.unlink,
            "emptied": lambda path: os.truncate(path, 0),
            "truncated": cut,
            "flipped in a bit": lambda path: _flip(path, self._random),
            "full of random bytes": garble,
        }

    def full_disks(self, number: int) -> None:
        """Limits the sizes of a run's files, and then resumes the run without the limit.

        The resumed run must end like an undisturbed one.
        """
        fault = "full disk"
        longest = (self._stopped / "metrics.csv").stat().st_size
        for _ in range(number):
            limit = int(longest ** self._random.uniform(0, 1.6)) - 1
            path = self._copy()
            starved = lives.train(path, lives.starve(limit)).wait()
            outcome, description = self._judge(path, starved, keep=True)
            if outcome == REFUSED:
                self.tally.add(f"{fault}: reported", outcome)
                outcome, description = self._judge(path, lives.train(path).wait(), (IDENTICAL,))
                details = f"{limit} bytes: {description}"
                self.tally.add(f"{fault}, then space again", outcome, details)
            else:
                self.tally.add(f"{fault}: reported", outcome, f"{limit} bytes: {description}")

    def _judge(self, path, ended, allowed=(IDENTICAL, REFUSED), keep=False) -> tuple[str, str]:
        """Returns the outcome and a description; deletes the run unless it is wrong or kept."""
        outcome, description = WRONG, f"{path} ended with {ended}"
        if ended.code == 0:
            found = lives.results(path)
            names = self._results.keys() | found.keys()
            other = [n for n in sorted(names) if found.get(n) != self._results.get(n)]
            outcome = WRONG if other else IDENTICAL
            description = f"{path} has other {other}" if other else ""
        elif ended.code == 1 and ended.error.startswith("error: ") and str(path) in ended.error:
            outcome = WRONG if "Traceback" in ended.error else REFUSED
        if outcome not in allowed:
            outcome = WRONG
        if outcome != WRONG and not keep:
            shutil.rmtree(path)
        return outcome, description

    def _copy(self):
        return pathlib.Path(shutil.copytree(self._stopped, self._new_path()))

    def _new_path(self):
        self._runs += 1
        return self._folder / f"run_{self._runs:04d}"


def _flip(path: pathlib.Path, rng: random.Random) -> None:
    """Flips a bit of a file, if it is not empty, before the zeros at the end of a sparse file."""
    used = len(path.read_bytes().rstrip(b"\0"))
    with open(path, "r+b") as file:
        file.seek(rng.randrange(max(used, 1)))
        byte = file.read(1)
        file.seek(-len(byte), os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]) if byte else b"")

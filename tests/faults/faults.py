"""Damages and kills runs, and tells what comes of it.

Each fault has to end in one of two ways: the run goes on and leaves what an undisturbed one leaves,
bit for bit, or it is refused by one message that names the file, or the directory.
"""

import collections
import functools
import os
import pathlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping

from tests.faults import lives

IDENTICAL, REFUSED, WRONG = "identical", "refused", "wrong"

_KILL_MOMENTS = ("a random moment", "within a commit", "at a call of the system")
_DISTURBED_COMMIT = 4  # of 8, after which a run is damaged: it has files of rounds before
_HELD_BACK = 0.02  # seconds, a few times what a commit takes


class Tally:
    """How often each fault was tried, and how it ended."""

    def __init__(self):
        self.counts: dict[str, collections.Counter] = {}
        self.wrong: list[str] = []

    def add(self, fault: str, outcome: str, what: str = "") -> None:
        """Counts an outcome; of a wrong one, `what` says what was done and what happened."""
        self.counts.setdefault(fault, collections.Counter())[outcome] += 1
        if outcome == WRONG:
            self.wrong.append(f"{fault}: {what}")

    def table(self) -> str:
        """A line a fault, and one for each wrong outcome."""
        width = max(map(len, self.counts), default=0)
        columns = ("tried", IDENTICAL, REFUSED, WRONG)
        lines = [f"{'':{width}}{''.join(f'{column:>11}' for column in columns)}"]
        for fault, count in self.counts.items():
            numbers = [count.total(), *(count[column] for column in columns[1:])]
            lines.append(f"{fault:{width}}{''.join(f'{number:>11}' for number in numbers)}")
        return "\n".join(lines + [f"WRONG: {what}" for what in self.wrong])


class Faults:
    """Runs in a folder, and what is done to them."""

    def __init__(self, folder: pathlib.Path, seed: int = 0):
        """Makes an undisturbed run."""
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
        """A run that was killed in the middle."""
        path = self._new_path()
        kill = lives.send(signal.SIGKILL)
        lives.train(path, lives.at_commit(_DISTURBED_COMMIT, kill, after=True)).wait()
        return path

    def kills(self, number: int, each_run: int = 5) -> None:
        """SIGKILLs at random moments, some of them in a run before it may finish."""
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
            outcome, what = self._judge(path, ended, (IDENTICAL,))
            for fault in done:
                self.tally.add(f"SIGKILL, {fault}", outcome, what)

    def _kill(self, is_new):
        moment = self._random.choice(_KILL_MOMENTS)
        kill = lives.send(signal.SIGKILL)
        if moment == "a random moment":
            seconds = self._random.uniform(0, self._seconds)
            return moment, lives.after_first_byte(seconds, kill)
        if moment == "within a commit":
            seconds = self._random.uniform(0, _HELD_BACK)
            commit = self._random.randint(1, 4)
            return moment, lives.at_commit(commit, lambda: lives.later(seconds, kill))
        names = ("fsync", "replace") + is_new * ("rename", "truncate")
        name = self._random.choice(names)
        call = self._random.randint(1, {"fsync": 20, "replace": 8}.get(name, 1))
        return moment, lives.at_call(name, call, kill, after=self._random.random() < 0.5)

    def signals(self, number: int) -> None:
        """SIGTERM and Ctrl-C at random moments: a message, and the code that tells of it."""
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
        """Each file of a run that was stopped, damaged in each way so many times."""
        for name in sorted(self._files(self._stopped)):
            for damage, apply in self._ways().items():
                for _ in range(number):
                    path = self._copy()
                    apply(path / name)
                    outcome, what = self._judge(path, lives.train(path).wait())
                    self.tally.add(f"a file {damage}", outcome, f"{name}: {what}")

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
        """A disk on which no file gets longer than so many bytes, as an ordinary user can have it.

        The run that is starved has then to end as an undisturbed one.
        """
        fault = "full disk"
        longest = (self._stopped / "metrics.csv").stat().st_size
        for _ in range(number):
            limit = int(longest ** self._random.uniform(0, 1.6)) - 1
            path = self._copy()
            starved = lives.train(path, lives.starve(limit)).wait()
            outcome, what = self._judge(path, starved, go_on=True)
            if outcome == REFUSED:
                self.tally.add(f"{fault}: told", outcome)
                outcome, what = self._judge(path, lives.train(path).wait(), (IDENTICAL,))
                self.tally.add(f"{fault}, then space again", outcome, f"{limit} bytes: {what}")
            else:
                self.tally.add(f"{fault}: told", outcome, f"{limit} bytes: {what}")

    def _judge(self, path, ended, allowed=(IDENTICAL, REFUSED), go_on=False) -> tuple[str, str]:
        """The outcome, and what to say of a wrong one; a run that does not go on is removed."""
        outcome, what = WRONG, f"{path} ended with {ended}"
        if ended.code == 0:
            found = lives.results(path)
            names = self._results.keys() | found.keys()
            other = [n for n in sorted(names) if found.get(n) != self._results.get(n)]
            outcome, what = (WRONG, f"{path} has other {other}") if other else (IDENTICAL, "")
        elif ended.code == 1 and ended.error.startswith("error: ") and str(path) in ended.error:
            outcome = WRONG if "Traceback" in ended.error else REFUSED
        if outcome not in allowed:
            outcome = WRONG
        if outcome != WRONG and not go_on:
            shutil.rmtree(path)
        return outcome, what

    def _copy(self):
        return pathlib.Path(shutil.copytree(self._stopped, self._new_path()))

    def _new_path(self):
        self._runs += 1
        return self._folder / f"run_{self._runs:04d}"


def _flip(path: pathlib.Path, rng: random.Random) -> None:
    """Changes a bit of a file, if it has any, before the zeros that a sparse one ends in."""
    used = len(path.read_bytes().rstrip(b"\0"))
    with open(path, "r+b") as file:
        file.seek(rng.randrange(max(used, 1)))
        byte = file.read(1)
        file.seek(-len(byte), os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]) if byte else b"")

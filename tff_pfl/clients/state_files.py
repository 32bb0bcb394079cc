"""Keeps clients' states in files that are never changed, which any process may write.

Each part of a federation has a folder. A round adds the file `round_000012.states` to it, with the
new states of the clients of this part that took part: the states after 12 rounds. Now and then,
`upto_000012.states` takes the place of all files up to that round.

A file is written as a whole, and its content follows from the run. So a process that is late, or
that does again what a lost one did, changes nothing: no locks are needed, on any file system. The
states of rounds after the last commit are in files of their own, which a resumed run ignores.
"""

import json
import mmap
import os
import pathlib
import re
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping

from tff_pfl.clients.errors import CorruptStateError, StateStoreError
from tff_pfl.output.files import whole_file

_NAME = re.compile(r"(round|upto)_(\d+)\.states")
_FEWEST = 8  # files that are merged into one
_PATIENCE = 60  # seconds in which a network's file system shows a file


def rounds_of(name: str) -> int | None:
    """Returns the number of rounds after which a file has states; `None` for another file."""
    match = _NAME.fullmatch(name)
    return match and int(match[2])


class StateFiles:
    """The states of the clients of a part, as bytes."""

    def __init__(self, folder: str | os.PathLike, round_num: int, last: int = 0):
        """Reads the index of each file.

        Args:
            folder: The folder of the part, which need not exist.
            round_num: The number of rounds that are committed; files of later ones are ignored.
            last: The number of rounds after which the newest file has states, if another machine
                may have written it: a network's file system may show it some seconds later.

        Raises:
            StateStoreError: The newest file is not there.
        """
        self._folder = pathlib.Path(folder)
        self._files: dict[int, _File] = {}  # by the number of rounds, ascending
        self._base = 0
        end = time.monotonic() + _PATIENCE
        while not self._found(round_num, last):
            if time.monotonic() > end:
                raise StateStoreError(
                    f"{self._folder} lacks the states of round {last}. Workers must see the folder "
                    "of the run under the same path."
                )
            _look_again(self._folder)

    def _found(self, round_num, last) -> bool:
        """Reads the index of each file; returns whether those of the last round are among them."""
        found = sorted(
            (int(match[2]), match[1], path)
            for path in self._folder.glob("*.states")
            if (match := _NAME.fullmatch(path.name)) and int(match[2]) <= round_num
        )
        bases = [number for number, kind, _ in found if kind == "upto"]
        self._base = bases[-1] if bases else 0
        try:
            self._files = {
                number: _File(path)
                for number, kind, path in found
                if number > self._base or (number == self._base and kind == "upto")
            }
        except FileNotFoundError:  # merged since
            return False
        return max(self._files, default=0) >= last

    def read(self, client_ids: Iterable[int], round_num: int) -> dict[int, bytes]:
        """Returns the states after so many rounds, without those of clients that have none."""
        files = [self._files[number] for number in sorted(self._files) if number <= round_num]
        found = {}
        for client_id in client_ids:
            file = next((file for file in reversed(files) if client_id in file.places), None)
            if file is not None:
                found[client_id] = file.read(client_id)
        return found

    def write(self, round_num: int, states: Mapping[int, bytes]) -> None:
        """Adds the states of the clients of a round; `round_num` counts it."""
        path = self._folder / f"round_{round_num:06d}.states"
        _write(path, states)
        self._files[round_num] = _File(path)

    def merge(self, round_num: int) -> None:
        """Merges files of rounds that are committed, once they are more bytes than those before.

        Args:
            round_num: The number of rounds that are committed. No run goes back behind them.
        """
        later = [it for it in self._files if self._base < it <= round_num]
        base = self._files.get(self._base)
        size = sum(self._files[number].size for number in later)
        if len(later) < _FEWEST or (base is not None and size < base.size):
            return
        last = max(later)
        committed = [number for number in sorted(self._files) if number <= last]
        ids = sorted({i for number in committed for i in self._files[number].places})
        path = self._folder / f"upto_{last:06d}.states"
        _write(path, self.read(ids, last))
        for number in committed:
            old = self._files.pop(number)
            old.path.unlink(missing_ok=True)
        self._files[last], self._base = _File(path), last


def _look_again(folder):
    """Makes a network's file system read a folder again, by a change in it."""
    time.sleep(0.1)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


class _File:
    """A file of states, of which each is read when it is needed."""

    def __init__(self, path: pathlib.Path):
        self.path, self.size = path, path.stat().st_size
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        line, end = self._map[: self._map.find(b"\n")], self._map.find(b"\n") + 1
        try:
            self.places = {
                client_id: (end + start, size, checksum)
                for client_id, start, size, checksum in json.loads(line)
            }
        except ValueError as error:
            raise self._damaged() from error

    def read(self, client_id: int) -> bytes:
        start, size, checksum = self.places[client_id]
        state = self._map[start : start + size]
        if zlib.crc32(state) != checksum:
            raise self._damaged()
        return state

    def _damaged(self) -> CorruptStateError:
        return CorruptStateError(
            f"{self.path} is damaged. Restore it from a copy, or start the run in a new directory."
        )


def _write(path: pathlib.Path, states: Mapping[int, bytes]) -> None:
    """Writes a line of JSON with the place of each state, then the states."""
    places, start = [], 0
    for client_id, state in states.items():
        places.append((client_id, start, len(state), zlib.crc32(state)))
        start += len(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, "wb") as file:
        file.write(json.dumps(places).encode() + b"\n")
        for state in states.values():
            file.write(state)

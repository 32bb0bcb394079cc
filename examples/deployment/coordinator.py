"""Runs the coordinator, which draws cohorts, counts uploads and keeps the server's state.

python coordinator.py --folder=deployed/server --devices=10 --cohort=6 --rounds=5 --port=8471
"""

import argparse
import fcntl
import os
import pathlib
import threading
import time
from concurrent import futures

import grpc
import numpy as np
from exported import (
    Message,
    MessageError,
    Side,
    check_process,
    digest,
    of_label,
    round_as_simulation,
    write,
)

_POLL_SECONDS = 0.1


class NotCountedError(Exception):
    """An upload that is late, of a device that is not in the cohort, or unusable."""


class Coordinator:
    """The server's side of a process, with its memory.

    The memory is a file with the server's state, the position `[round, exchange]` of the next
    exchange, the digest of each device's last counted upload, and the exchanges that were finished.
    Uploads of the next exchange are files besides.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        num_devices: int,
        cohort_size: int,
        rounds: int,
        exchange_seconds: float = float("inf"),
        least_uploads: int = 1,
        seed: int = 0,
    ):
        """Loads the process and the memory.

        Args:
            folder: The folder with the exported server, and for the memory.
            num_devices: The number of devices; their ids are 0 .. `num_devices` - 1.
            cohort_size: The number of devices in a round.
            rounds: The number of rounds.
            exchange_seconds: The time after which an exchange ends without those that are missing.
            least_uploads: The number of uploads below which it waits for more.
            seed: The seed of the cohorts.

        Raises:
            MessageError: The memory is of another process, or has more rounds than `rounds`; or
                files are missing or damaged.
        """
        self._side = Side(folder / "process")
        self._memory, self._uploads = folder / "memory.npz", folder / "uploads"
        self._devices, self._cohort_size, self._rounds = range(num_devices), cohort_size, rounds
        self._seconds, self._least, self._seed = exchange_seconds, least_uploads, seed
        self._lock = threading.RLock()
        if self._memory.exists():
            self._header, self._state = Message.unpack(self._memory.read_bytes())
            check_process(self._header, self._side.process)
        else:
            self._state = self._side.call("initialize")
            self._header = {
                "process": self._side.process,
                "position": [0, 0],
                "counted": {},
                "history": [],
            }
        round_num, index = self._header["position"]
        if (begun := round_num + bool(index)) > rounds:
            raise MessageError(f"{self._memory} has {begun} rounds, more than rounds={rounds}.")
        self._begin()

    @property
    def history(self) -> list[dict]:
        """The finished exchanges: position, counted ids, why others were left out, and metrics."""
        return self._header["history"]

    def ask(self, request: bytes) -> bytes:
        """Returns the task of a device.

        Raises:
            MessageError: The request is damaged, or of another process, device or state.
        """
        asking = Message.unpack(request).header
        client_id = self._client_of(asking)
        with self._lock:
            counted = self._header["counted"].get(str(client_id))
            if counted not in (asking.get("counted"), asking.get("answered")):
                raise MessageError(
                    f"Device {client_id} is not in the state after its last counted upload. Its "
                    "folder or the coordinator's is an old copy, or two devices have this id."
                )
            header = {
                "process": self._side.process,
                "task": "wait",
                "counted": counted,
                "position": self._header["position"],
            }
            if self._is_over:
                return Message(header | {"task": "done"}, self._message_to(client_id)).pack()
            if client_id in self._missing:
                return Message(header | {"task": "work"}, self._message_to(client_id)).pack()
            return Message(header, {}).pack()

    def send(self, upload: bytes) -> bytes:
        """Takes the upload of a device. A second one of the same exchange is ignored.

        Raises:
            MessageError: The upload is damaged, or of another process or an unknown device.
            NotCountedError: The exchange is over, or the device is not in its cohort; or its
                tensors are wrong, and the exchange goes on without them.
        """
        header, tensors = Message.unpack(upload)
        client_id, position = self._client_of(header), header.get("position")
        with self._lock:
            if self._is_over or position != self._header["position"]:
                raise NotCountedError(f"The exchange {position} is not the current one.")
            if client_id not in self._expected:
                raise NotCountedError(f"Device {client_id} is not in the cohort of {position}.")
            if client_id in self._missing:
                try:
                    self._side.check("upload", tensors, f"accumulate_{self._exchange}")
                    self._updated([(client_id, tensors)])  # a trial, alone
                except MessageError as error:
                    self._left_out[client_id] = f"Device {client_id}: {error}"
                    raise NotCountedError(self._left_out[client_id]) from error
                write(self._upload_of(client_id), upload)
                self.finish_if_due()
        return b""

    def finish_if_due(self) -> None:
        """Ends the exchange if no upload is missing, or its time is over and enough are here."""
        with self._lock:
            if self._is_over:
                return
            here = [i for i in self._expected if self._upload_of(i).exists()]
            is_late = time.monotonic() - self._begun > self._seconds
            if not self._missing or (is_late and len(here) >= self._least):
                self._finish(here)

    def _finish(self, client_ids):
        """Updates the server's state with the uploads of devices, in their order."""
        files = {i: self._upload_of(i) for i in client_ids}
        updated = self._updated(
            (i, Message.unpack(file.read_bytes()).tensors) for i, file in files.items()
        )
        counted = {str(i): digest(file.read_bytes()) for i, file in files.items()}
        round_num, index = position = self._header["position"]
        metrics = {name: np.asarray(v).tolist() for name, v in of_label("metrics", updated).items()}
        finished = {
            "position": position,
            "client_ids": client_ids,
            "left_out": list(self._left_out.values()),
            "metrics": metrics,
        }
        is_last = index == len(self._side.exchanges) - 1
        self._header |= {
            "position": [round_num + 1, 0] if is_last else [round_num, index + 1],
            "counted": self._header["counted"] | counted,
            "history": [*self.history, finished],
        }
        self._state = of_label("server", updated)
        Message(self._header, self._state).write(self._memory)
        self._begin()

    def _updated(self, uploads):
        """Returns the server's state, and metrics, after uploads, pairs of an id and tensors."""
        total = self._side.call(f"zero_{self._exchange}")
        for client_id, tensors in uploads:
            own = {"client_id": np.int32(client_id)}
            total = self._side.call(f"accumulate_{self._exchange}", total, tensors, own)
        return self._side.call(f"update_{self._exchange}", self._state, total)

    def _begin(self):
        """Prepares the next exchange."""
        for upload in set(self._uploads.glob("*")) - set(map(self._upload_of, self._devices)):
            upload.unlink()  # of an exchange that is over
        round_num, index = self._header["position"]
        self._is_over, self._begun = round_num == self._rounds, time.monotonic()
        self._left_out = {}
        if self._is_over:
            self._message = self._side.call("personalize_message", self._state)
            return
        self._exchange = self._side.exchanges[index]
        self._message = self._side.call(f"message_{self._exchange}", self._state)
        rng = np.random.default_rng([self._seed, round_num])
        cohort = rng.choice(self._devices, self._cohort_size, replace=False)
        self._expected = self.history[-1]["client_ids"] if index else sorted(cohort.tolist())

    @property
    def _missing(self) -> list[int]:
        """The devices of the cohort whose uploads are neither here nor left out."""
        waiting = (i for i in self._expected if i not in self._left_out)
        return [i for i in waiting if not self._upload_of(i).exists()]

    def _message_to(self, client_id):
        select = "personalize_select" if self._is_over else f"select_{self._exchange}"
        if select not in self._side:
            return self._message
        own = self._side.call(select, self._state, {"client_id": np.int32(client_id)})
        return self._message | own

    def _upload_of(self, client_id) -> pathlib.Path:
        round_num, index = self._header["position"]
        return self._uploads / f"{round_num}_{index}_{client_id}.npz"

    def _client_of(self, header) -> int:
        check_process(header, self._side.process)
        client_id = header.get("client_id")
        if type(client_id) is not int or client_id not in self._devices:  # 1 == True
            raise MessageError(f"There is no device {client_id!r}: 0 to {self._devices[-1]}.")
        return client_id


def lock(folder: pathlib.Path) -> None:
    """Locks a folder until this program ends.

    Raises:
        OSError: Another program has locked it, or it does not exist.
    """
    try:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"Another coordinator runs in {folder}. Stop it first.") from error


def serve(coordinator: Coordinator, port: int) -> grpc.Server:
    """Starts a server on the loopback interface.

    Raises:
        OSError: The port is taken.
    """

    def answering(call):
        def answer(request, context):
            try:
                return call(request)
            except MessageError as error:
                print(f"Refused: {error}", flush=True)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1000])
            except NotCountedError as error:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:1000])

        return grpc.unary_unary_rpc_method_handler(answer)

    calls = {"Ask": answering(coordinator.ask), "Send": answering(coordinator.send)}
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    options.append(("grpc.so_reuseport", 0))  # no second program on the port
    server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Coordinator", calls)])
    try:
        server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise OSError(f"Port {port} is taken. Choose another.") from error
    server.start()
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="Its folder.")
    parser.add_argument("--port", required=True, type=int, help="Its port on this machine.")
    parser.add_argument("--devices", required=True, type=int, help="Number of devices.")
    parser.add_argument("--cohort", required=True, type=int, help="Number of devices in a round.")
    parser.add_argument("--rounds", required=True, type=int, help="Number of rounds.")
    parser.add_argument(
        "--exchange_seconds",
        type=float,
        default=float("inf"),
        help="Time after which an exchange ends without the devices that are missing.",
    )
    parser.add_argument(
        "--least_uploads", type=int, default=1, help="Uploads below which it waits for more."
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the cohorts.")
    args = parser.parse_args()
    round_as_simulation()
    try:
        lock(args.folder)
        coordinator = Coordinator(
            args.folder,
            num_devices=args.devices,
            cohort_size=args.cohort,
            rounds=args.rounds,
            exchange_seconds=args.exchange_seconds,
            least_uploads=args.least_uploads,
            seed=args.seed,
        )
        server, shown = serve(coordinator, args.port), 0
    except (MessageError, OSError) as error:
        parser.error(str(error))
    while True:
        coordinator.finish_if_due()
        for finished in coordinator.history[shown:]:
            print(finished["position"], finished["client_ids"], *finished["left_out"], flush=True)
        shown = len(coordinator.history)
        server.wait_for_termination(timeout=_POLL_SECONDS)


if __name__ == "__main__":
    main()

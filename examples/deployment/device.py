"""Runs a device: its examples, its state and its model never leave its folder.

python device.py --folder=deployed/device_0 --coordinator=localhost:8471
"""

import argparse
import functools
import pathlib
import time
from collections.abc import Callable

import grpc
import numpy as np
from exported import (
    Message,
    MessageError,
    Side,
    check_process,
    digest,
    labelled,
    of_label,
    round_as_simulation,
    unlabelled,
)

_POLL_SECONDS = 0.2


class Device:
    """The client's side of a process, with a client's examples and memory.

    The memory is a file with the client's state after its last upload that was counted, the digest
    of that upload, and its last answer with the state after it, which becomes the client's state
    once it is counted.
    """

    def __init__(self, folder: pathlib.Path):
        """Loads the examples, the process and the memory.

        Raises:
            MessageError: The memory is of another process; or files are missing or damaged.
        """
        self._folder, self._side = folder, Side(folder / "client")
        examples = Message.unpack((folder / "examples.npz").read_bytes())
        self.client_id = examples.header["client_id"]
        self._inputs = examples.tensors | {"client_id": np.int32(self.client_id)}
        self._memory = folder / "memory.npz"
        if self._memory.exists():
            header, tensors = Message.unpack(self._memory.read_bytes())
            check_process(header, self._side.process)
            self._answered, self._counted = header["answered"], header["counted"]
            self._state, self._next = unlabelled("old", tensors), unlabelled("new", tensors)
            self._answer = tensors["answer"].tobytes()
        else:
            self._answered, self._counted, self._next, self._answer = None, None, {}, b""
            self._state = self._side.call("initialize", self._inputs)

    def hello(self) -> bytes:
        """Returns the request for a task, which says between which two uploads the state is."""
        header = {"process": self._side.process, "client_id": self.client_id}
        states = {"counted": self._counted, "answered": digest(self._answer)}
        return Message(header | states, {}).pack()

    def act(self, task: bytes) -> bytes | None:
        """Does a task; returns the upload, if there is one."""
        header, message = Message.unpack(task)
        check_process(header, self._side.process)
        self._settle(header["counted"])
        if header["task"] == "work":
            return self._work(header["position"], message)
        if header["task"] == "done":
            self._personalize(message)
        return None

    def _settle(self, counted):
        """Adopts the state after the last answer, if the coordinator has counted the answer."""
        if counted == digest(self._answer):
            self._state, self._counted = self._next, counted

    def _work(self, position, message) -> bytes:
        if position == self._answered:
            return self._answer
        process, exchange = self._side.process, self._side.exchanges[position[1]]
        made = self._side.call(f"work_{exchange}", self._inputs, message, self._state)
        header = {"process": process, "client_id": self.client_id, "position": position}
        self._answered, self._answer = position, Message(header, of_label("upload", made)).pack()
        self._next = of_label("state", made) | of_label("carry", made)
        tensors = labelled("old", self._state) | labelled("new", self._next)
        tensors["answer"] = np.frombuffer(self._answer, np.uint8)
        header = {"process": process, "answered": position, "counted": self._counted}
        Message(header, tensors).write(self._memory)
        return self._answer

    def _personalize(self, message):
        weights = self._side.call("personalize", self._inputs, message, self._state)
        Message({"process": self._side.process}, weights).write(self._folder / "model.npz")


def run(device: Device, ask: Callable[[bytes], bytes], send: Callable[[bytes], bytes]) -> None:
    """Works until the rounds are over, and then writes the client's model.

    Args:
        device: The device.
        ask: Sends a request, and returns the task.
        send: Sends an upload.
    """
    while True:
        task = ask(device.hello())
        upload = device.act(task)
        kind = Message.unpack(task).header["task"]
        if upload is not None:
            send(upload)
        elif kind == "done":
            return
        else:
            time.sleep(_POLL_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="The device's folder.")
    parser.add_argument("--coordinator", required=True, help="HOST:PORT of the coordinator.")
    args = parser.parse_args()
    round_as_simulation()
    try:
        device = Device(args.folder)
    except (MessageError, FileNotFoundError) as error:
        parser.error(str(error))
    unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    options = [*unlimited, ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(args.coordinator, options) as channel:
        # A coordinator that is down comes back.
        ask, send = (
            functools.partial(_patiently, channel.unary_unary(f"/Coordinator/{name}"))
            for name in ("Ask", "Send")
        )
        run(device, ask, send)


def _patiently(call, request: bytes) -> bytes:
    """Calls the coordinator until it answers; returns nothing if it does not count an upload."""
    while True:
        try:
            return call(request, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                print(f"Not counted: {error.details()}", flush=True)
                return b""
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise SystemExit(f"The coordinator refuses: {error.details()}") from error
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()

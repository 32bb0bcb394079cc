"""Tests that exported sides of a process, which need TensorFlow alone, do its rounds."""

import dataclasses
import functools
import io
import re
import shutil
import subprocess
import sys
import types

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.util import tf_stack

from tests.deployment import deployed
from tests.deployment.deployed import SIZES, SUBJECTS, answer, coordinator, exported, free_port
from tests.experiment.killed import Killed
from tests.federation import EXAMPLES_TYPE, assert_close, assert_equal, local_sgd, tiny_model
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.algorithms import make
from tff_pfl.deployment import FormError, export_client, export_server, named_tensors
from tff_pfl.models import lora
from tff_pfl.runtime.graph.operations import operations
from tff_pfl.templates import compose
from tff_pfl.tracing import frozen

MessageError, NotCountedError = exported.MessageError, coordinator.NotCountedError
# TensorFlow fuses operations of these methods, unless `round_as_simulation` was called; pFedMe's it
# also arranges differently in the simulation's larger graph. With weights of more than two axes, as
# those of pFedMB and Floco, the last batch has half of the rows in the simulation, see
# `branch_if_alone`, but not in an exported process.
ROUNDED = ("pfedhn", "pfedhn_pc", "plgu_ghn", "pfedmb", "pfedme", "floco")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["ditto", "fedpg", *(slow(name) for name in SUBJECTS if name not in ("ditto", "fedpg"))]
)
def test_rounds_equal_those_of_the_process(name, tmp_path):
    process, clients = SUBJECTS[name].process, SUBJECTS[name].clients(SIZES)
    deployed.write_folders(tmp_path, process, clients)
    history = deployed.run(tmp_path, len(clients), rounds=3).history
    with tff.framework.get_context_stack().install(runtime.create_graph_context(vectorize="never")):
        rounds = list(deployed.rounds_of_the_process(process, clients))
        state, clients, _ = rounds[-1]
        models = process.personalize(state, clients)
    all_metrics = [its[exchange.name] for *_, its in rounds for exchange in process.exchanges]
    compare = assert_close if name.partition("-")[0] in ROUNDED else assert_equal
    compare(deployed.tensors(tmp_path / "server/memory.npz"), named_tensors("server", state))
    for i, (client, model) in enumerate(zip(clients, models, strict=True)):
        found = exported.unlabelled("new", deployed.tensors(tmp_path / f"device_{i}/memory.npz"))
        compare(exported.of_label("state", found), named_tensors("state", client.state))
        weights = deployed.tensors(tmp_path / f"device_{i}/model.npz")
        compare(weights, named_tensors("weights", model))
    for finished, metrics in zip(history, all_metrics, strict=True):
        assert_close(finished["metrics"], named_tensors("metrics", metrics), tolerance=1e-6)


class Killer:
    """Kills at the n-th write of a file: before it, or just after it."""

    def __init__(self, monkeypatch):
        self.left, self.after = 0, False
        write = exported.os.replace

        def replace(*args):
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            write(*args)
            if self.left == 0:
                raise Killed

        monkeypatch.setattr(exported.os, "replace", replace)

    def run(self, nth, after, folder, **options):
        """Runs until it is killed, and then to the end; returns whether it was killed."""
        self.left, self.after = nth, after
        try:
            deployed.run(folder, **options)
            return False
        except Killed:
            self.left = 0  # no more
            deployed.run(folder, **options)
            return True


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ditto", slow("fedpg")])
def test_programs_that_are_killed_at_any_write_lose_and_repeat_nothing(name, tmp_path, monkeypatch):
    process, clients = SUBJECTS[name].process, SUBJECTS[name].clients((3, 4))
    deployed.write_folders(tmp_path / "0", process, clients)
    killer = Killer(monkeypatch)
    num_kills = 0
    for nth in range(1, 100):
        for after in (False, True):
            folder = tmp_path / f"{nth}_{after}"
            shutil.copytree(tmp_path / "0", folder, symlinks=True)
            was_killed = killer.run(nth, after, folder, num_devices=2, rounds=2)
            if nth == 1:
                expected = deployed.files(folder)
            assert deployed.files(folder) == expected
            num_kills += was_killed
        if not was_killed:
            break
    assert num_kills >= 20


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ditto")
    deployed.write_folders(folder, SUBJECTS["ditto"].process, SUBJECTS["ditto"].clients((3, 4, 5)))
    return folder


@pytest.fixture
def folder(template, tmp_path):
    shutil.copytree(template, tmp_path / "ditto", symlinks=True)
    return tmp_path / "ditto"


@pytest.mark.thorough
def test_device_that_is_asked_twice_sends_the_same_bytes(folder):
    server = deployed.coordinator_of(folder, 3, rounds=2)
    first, *others = (deployed.device_of(folder, i) for i in range(3))
    task = server.ask(first.hello())
    upload = first.act(task)
    assert first.act(task) == upload == deployed.device_of(folder, 0).act(task)
    server.send(upload)
    server.send(upload)
    assert answer(server, first) is None  # it waits
    for other in others:
        server.send(answer(server, other))
    assert server.history[0]["client_ids"] == [0, 1, 2]
    assert server.history[0]["metrics"]["metrics__num_clients"] == 3


@pytest.mark.thorough
def test_exchange_ends_without_a_late_device_which_keeps_its_state(folder):
    options = {"exchange_seconds": 0.0, "least_uploads": 2}
    server = deployed.coordinator_of(folder, 3, rounds=2, **options)
    devices = [deployed.device_of(folder, i) for i in range(3)]
    late = answer(server, devices[2])
    for one in devices[:2]:
        server.send(answer(server, one))
    assert server.history[0]["client_ids"] == [0, 1]
    with pytest.raises(NotCountedError, match=r"\[0, 0\] is not the current one"):
        server.send(late)
    assert answer(server, devices[2]) != late
    memory = deployed.tensors(folder / "device_2/memory.npz")
    before = SUBJECTS["ditto"].client(2, 5).state
    assert_equal(exported.unlabelled("old", memory), named_tensors("state", before))


REMOVED = object()


def changed(data, header=None, tensors=None):
    """Returns a message with other entries in its header, and other tensors."""
    message = exported.Message.unpack(data)
    changes = (message.header | (header or {}), message.tensors | (tensors or {}))
    return exported.Message(
        *({name: value for name, value in part.items() if value is not REMOVED} for part in changes)
    ).pack()


def saved(save, *args, **arrays):
    file = io.BytesIO()
    save(file, *args, **arrays)
    return file.getvalue()


def with_header(text):
    return saved(np.savez, header=np.frombuffer(text.encode(), np.uint8))


# Bytes that a device sends instead of a request or an upload, and the answer.
REFUSED = {
    "nothing": (lambda data: b"", "damaged"),
    "text": (lambda data: b"GET / HTTP/1.1", "damaged"),
    "flipped": (lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:], "damaged"),
    "an array": (lambda data: saved(np.save, np.zeros(3)), "damaged"),
    "objects": (lambda data: saved(np.savez, header=np.array([{}])), "damaged"),
    "no header": (lambda data: saved(np.savez, x=np.zeros(3)), "damaged"),
    "deep json": (lambda data: with_header("[" * 100_000), "damaged"),
    "list": (lambda data: with_header("[0]"), "is a list, not an object"),
    "other process": (lambda data: changed(data, {"process": "other"}), "process other, not"),
    "no id": (lambda data: changed(data, {"client_id": REMOVED}), "no device None: 0 to 2"),
    **{
        f"id {value!r}": (
            lambda data, value=value: changed(data, {"client_id": value}),
            "There is no device .*: 0 to 2",
        )
        for value in (True, 1.0, -1, 3, "0", [0])
    },
}


@pytest.fixture(scope="module")
def asked(template, tmp_path_factory):
    """Returns a coordinator, and the request and the upload of a device."""
    folder = shutil.copytree(template, tmp_path_factory.mktemp("asked") / "ditto", symlinks=True)
    server, one = deployed.coordinator_of(folder, 3, rounds=1), deployed.device_of(folder, 0)
    hello = one.hello()
    return server, hello, one.act(server.ask(hello))


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_requests_that_no_device_sends_are_refused(asked, change, message):
    server, hello, upload = asked
    for call, data in ((server.ask, hello), (server.send, upload)):
        with pytest.raises(MessageError, match=message):
            call(change(data))
    assert exported.Message.unpack(server.ask(hello)).header["task"] == "work"


KERNEL = "upload__2__head__kernel"
WRONG_TENSORS = [
    (KERNEL, REMOVED, f"missing, or too many: {KERNEL}"),
    ("more", np.zeros(1), "missing, or too many: more"),
    ("upload__0", np.int32(1), "missing, or too many: upload__0"),  # another client's id
    (KERNEL, np.zeros((5, 3)), r"is float64\[5, 3\], not float32\[5, 3\]"),
    (KERNEL, np.zeros((3, 5), np.float32), r"is float32\[3, 5\], not"),
    (KERNEL, np.array("text"), "is str"),
    (KERNEL, np.full((5, 3), np.nan, np.float32), f"{KERNEL} has NaN or infinite numbers"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_TENSORS)
def test_round_continues_without_a_wrong_upload(name, value, message, folder):
    server = deployed.coordinator_of(folder, 3, rounds=2)
    devices = [deployed.device_of(folder, i) for i in range(3)]
    wrong, *uploads = (answer(server, one) for one in devices)
    with pytest.raises(NotCountedError, match=f"^Device 0: .*{message}"):
        server.send(changed(wrong, {}, {name: value}))
    assert answer(server, devices[0]) is None  # it waits for the next exchange
    for upload in uploads:
        server.send(upload)
    [finished] = server.history
    assert finished["client_ids"] == [1, 2]
    assert finished["metrics"]["metrics__num_clients"] == 2
    assert finished["metrics"]["metrics__server_kept"] == 0
    [reason] = finished["left_out"]
    assert re.search(message, reason)
    assert answer(server, devices[0]) is not None


def test_uploads_of_other_exchanges_are_not_counted(folder):
    server, one = deployed.coordinator_of(folder, 3, rounds=1), deployed.device_of(folder, 0)
    upload = answer(server, one)
    for position in (REMOVED, None, 0, [1, 0], [0, 1], ["0", "0"], {}):
        with pytest.raises(NotCountedError, match="is not the current one"):
            server.send(changed(upload, {"position": position}))
    assert deployed.run(folder, 3, rounds=1).history[0]["client_ids"] == [0, 1, 2]


def test_device_goes_on_after_an_upload_that_is_not_counted(folder, capsys):
    server, one = deployed.coordinator_of(folder, 3, rounds=1), deployed.device_of(folder, 0)
    upload, port = answer(server, one), free_port()
    running = coordinator.serve(server, port)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        send = functools.partial(
            deployed.device._patiently, channel.unary_unary("/Coordinator/Send")
        )
        assert send(changed(upload, {}, {"upload__3": np.float32(np.nan)})) == b""
        assert capsys.readouterr().out == (
            "Not counted: Device 0: upload__3 has NaN or infinite numbers.\n"
        )
        with pytest.raises(SystemExit, match="The coordinator refuses: There is no device 7"):
            send(changed(upload, {"client_id": 7}))
    running.stop(None)


def test_round_of_wrong_uploads_alone_keeps_the_state_of_the_server(folder):
    server = deployed.coordinator_of(folder, 3, rounds=2)
    for i in range(3):
        upload = answer(server, deployed.device_of(folder, i))
        with pytest.raises(NotCountedError):
            server.send(changed(upload, {}, {"upload__3": np.float32(np.nan)}))
    server.finish_if_due()
    assert server.history[0]["client_ids"] == []
    assert server.history[0]["metrics"]["metrics__server_kept"] == 1
    assert [len(one["client_ids"]) for one in deployed.run(folder, 3, rounds=2).history] == [0, 3]


@pytest.mark.thorough
def test_upload_that_cannot_be_aggregated_does_not_end_rounds(tmp_path):
    subject = SUBJECTS["pfedhn-hidden_width-hidden_layers"]
    deployed.write_folders(tmp_path, subject.process, subject.clients((3, 4)))
    server = deployed.coordinator_of(tmp_path, 2, rounds=2)
    devices = [deployed.device_of(tmp_path, i) for i in range(2)]
    uploads = [answer(server, one) for one in devices]
    [own_id] = [name for name in exported.Message.unpack(uploads[0]).tensors if "client_id" in name]
    with pytest.raises(
        NotCountedError, match=r"Device 0: update_train failed: [^$]*10000 is not in"
    ):
        server.send(changed(uploads[0], {}, {own_id: np.int32(10_000)}))
    server.send(uploads[1])
    assert server.history[0]["client_ids"] == [1]


def test_device_in_another_state_than_the_counted_one_is_refused(folder):
    shutil.copytree(folder / "device_0", folder / "copy", symlinks=True)
    deployed.run(folder, 3, rounds=1)
    server = deployed.coordinator_of(folder, 3, rounds=2)
    assert answer(server, deployed.device_of(folder, 0))
    shutil.rmtree(folder / "device_0")
    shutil.move(folder / "copy", folder / "device_0")
    with pytest.raises(MessageError, match=r"Device 0 is not in the state after its last counted"):
        server.ask(deployed.device_of(folder, 0).hello())


def test_second_device_of_an_id_is_refused(folder):
    examples = folder / "device_1/examples.npz"
    examples.write_bytes(changed(examples.read_bytes(), {"client_id": 0}))
    server = deployed.coordinator_of(folder, 1, rounds=2)
    first, second = (deployed.device_of(folder, i) for i in range(2))
    upload, late = (answer(server, one) for one in (first, second))
    server.send(upload)
    with pytest.raises(NotCountedError):
        server.send(late)
    assert answer(server, first)
    with pytest.raises(MessageError, match="Device 0 .* two devices have this id"):
        server.ask(second.hello())


def test_fewer_rounds_than_those_done_are_refused(folder):
    deployed.run(folder, 3, rounds=2)
    deployed.coordinator_of(folder, 3, rounds=2)
    with pytest.raises(MessageError, match=r"memory.npz has 2 rounds, more than rounds=1\."):
        deployed.coordinator_of(folder, 3, rounds=1)


def test_second_coordinator_of_a_folder_or_a_port_is_refused(tmp_path):
    coordinator.lock(tmp_path)
    with pytest.raises(OSError, match="Another coordinator runs in .* Stop it first"):
        coordinator.lock(tmp_path)
    nobody = types.SimpleNamespace(ask=None, send=None)
    port = free_port()
    first = coordinator.serve(nobody, port)
    with pytest.raises(OSError, match=f"Port {port} is taken"):
        coordinator.serve(nobody, port)
    first.stop(None)


def test_device_refuses_what_is_not_of_its_process(folder, tmp_path):
    server, one = deployed.coordinator_of(folder, 3, rounds=2), deployed.device_of(folder, 0)
    task = server.ask(one.hello())
    with pytest.raises(MessageError, match="of the process other, not"):
        one.act(changed(task, {"process": "other"}))
    one.act(task)
    memory = folder / "device_0/memory.npz"
    memory.write_bytes(changed(memory.read_bytes(), {"process": "other"}))
    with pytest.raises(MessageError, match="of the process other, not"):
        deployed.device_of(folder, 0)


@pytest.mark.thorough
def test_exports_do_not_name_files_of_the_user(tmp_path, monkeypatch):
    """Exports a block that this file wrote, and where its operations are made."""
    monkeypatch.setattr(tf_stack, "extract_stack", tf_stack.extract_stack.__wrapped__)

    def with_own_line(exchange):
        def client_work(*args):
            output = exchange.client_work(*args)
            return output._replace(weight=2.0 * output.weight)

        return dataclasses.replace(exchange, client_work=client_work)

    algorithm = make("fedavg", tiny_model(), local_sgd()).with_exchanges(with_own_line)
    export_client(compose(algorithm, EXAMPLES_TYPE), tmp_path)
    assert b"test_saved_process.py" not in (tmp_path / "saved_model.pb").read_bytes()


def test_truncated_saved_model_is_refused(folder, tmp_path):
    shutil.copytree(folder / "client", tmp_path / "client")
    saved = tmp_path / "client/saved_model.pb"
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(MessageError, match=r"saved_model.pb is damaged"):
        exported.Side(tmp_path / "client")
    with pytest.raises(MessageError, match="has no exported process"):
        exported.Side(tmp_path)


@pytest.mark.thorough
def test_devices_need_tensorflow_alone():
    program = (
        "import sys; sys.modules['tff_pfl'] = sys.modules['tensorflow_federated'] = None; "
        f"sys.path.insert(0, {str(deployed.EXAMPLE)!r}); import device, coordinator"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.thorough
def test_secure_sums_and_full_folders_are_refused(tmp_path):
    secure = make("fedavg", tiny_model(), local_sgd(), aggregator=tff.learning.secure_aggregator())
    process = compose(secure, EXAMPLES_TYPE)
    for export in (export_client, export_server):
        with pytest.raises(FormError, match="'train' uses secure sums, but an exported server"):
            export(process, tmp_path / "secure")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        export_client(SUBJECTS["ditto"].process, tmp_path)


def test_frozen_weights_are_variables_of_devices(tmp_path, monkeypatch):
    """Exports a process whose frozen weights are in files, and loads it without the files."""
    monkeypatch.setenv("TFF_PFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(frozen, "LEAST_BYTES", 0)
    base = tiny_model()
    process = compose(make("fedavg", lora(base, rank=2), local_sgd()), EXAMPLES_TYPE)
    export_client(process, tmp_path / "client")
    expected = {weight.numpy().tobytes() for weight in tf.nest.flatten(base.init(0))}
    shutil.rmtree(tmp_path / "cache")
    frozen._loaded.clear()
    loaded = tf.saved_model.load(tmp_path / "client")
    assert {variable.numpy().tobytes() for variable in loaded.frozen.values()} == expected
    work = loaded.signatures["work_train"]
    assert not [op for op in operations(work.graph) if op.type == "ReadFile"]

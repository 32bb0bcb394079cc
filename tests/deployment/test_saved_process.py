"""Tests that exported sides of a process, which need TensorFlow alone, do its rounds."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.test_contract import ROWS
from tests.deployment import deployed
from tests.deployment.deployed import exported
from tests.experiment.killed import Killed
from tests.federation import EXAMPLES_TYPE, assert_close, assert_equal, local_sgd, tiny_model
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.algorithms import make
from tff_pfl.deployment import FormError, export_client, export_server, named_tensors
from tff_pfl.templates import compose

SUBJECTS = {row.id: row.subject for row in ROWS}
SIZES = (6, 5, 9)
# TensorFlow fuses operations of these methods, unless `round_as_simulation` was called; pFedMe's it
# also arranges differently in the simulation's larger graph.
ROUNDED = ("pfedhn", "pfedhn_pc", "plgu_ghn", "pfedme")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["ditto", "fedpg", *(slow(name) for name in SUBJECTS if name not in ("ditto", "fedpg"))]
)
def test_rounds_equal_those_of_the_process(name, tmp_path):
    process, clients = SUBJECTS[name].process, SUBJECTS[name].clients(SIZES)
    deployed.write_folders(tmp_path, process, clients)
    history = deployed.run(tmp_path, len(clients), rounds=3).history
    state, all_metrics = process.initialize(), []
    with tff.framework.get_context_stack().install(runtime.create_graph_context(vectorize="never")):
        for _ in range(3):
            state, states, metrics = process.next(state, clients)
            clients = [c._replace(state=s) for c, s in zip(clients, states, strict=True)]
            all_metrics += [metrics[exchange.name] for exchange in process.exchanges]
        models = process.personalize(state, clients)
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
    first = deployed.device_of(folder, 0)
    task = server.ask(first.hello())
    upload = first.act(task)
    assert first.act(task) == upload == deployed.device_of(folder, 0).act(task)
    server.send(upload)
    server.send(upload)
    assert exported.Message.unpack(server.ask(first.hello())).header["task"] == "wait"
    for i in (1, 2):
        other = deployed.device_of(folder, i)
        server.send(other.act(server.ask(other.hello())))
    assert server.history[0]["client_ids"] == [0, 1, 2]
    assert server.history[0]["metrics"]["metrics__num_clients"] == 3


@pytest.mark.thorough
def test_exchange_ends_without_a_late_device_which_keeps_its_state(folder):
    options = {"exchange_seconds": 0.0, "least_uploads": 2}
    server = deployed.coordinator_of(folder, 3, rounds=2, **options)
    devices = [deployed.device_of(folder, i) for i in range(3)]
    late = devices[2].act(server.ask(devices[2].hello()))
    for one in devices[:2]:
        server.send(one.act(server.ask(one.hello())))
    assert server.history[0]["client_ids"] == [0, 1]
    with pytest.raises(deployed.coordinator.LateError, match=r"\[0, 0\] is not the current one"):
        server.send(late)
    assert devices[2].act(server.ask(devices[2].hello())) != late
    memory = deployed.tensors(folder / "device_2/memory.npz")
    before = SUBJECTS["ditto"].client(2, 5).state
    assert_equal(exported.unlabelled("old", memory), named_tensors("state", before))


def changed(upload, header=None, tensors=None):
    message = exported.Message.unpack(upload)
    return exported.Message(
        message.header | (header or {}), message.tensors | (tensors or {})
    ).pack()


WRONG_UPLOADS = {
    "of the process other, not": {"header": {"process": "other"}},
    "There is no device 7: 0 to 2": {"header": {"client_id": 7}},
    "missing, or too many: more": {"tensors": {"more": np.zeros(1)}},
    "missing, or too many: upload__0": {"tensors": {"upload__0": np.int32(1)}},
    r"upload__3 is float64\[3\], not float32": {"tensors": {"upload__3": np.zeros(3)}},
}


def test_coordinator_refuses_wrong_uploads(folder):
    server, one = deployed.coordinator_of(folder, 3, rounds=2), deployed.device_of(folder, 0)
    upload = one.act(server.ask(one.hello()))

    for message, change in WRONG_UPLOADS.items():
        with pytest.raises(exported.MessageError, match=message):
            server.send(changed(upload, **change))
    with pytest.raises(exported.MessageError, match="damaged"):
        server.send(upload[:-20])
    with pytest.raises(deployed.coordinator.LateError, match="not the current"):
        server.send(changed(upload, {"position": [4, 0]}))
    assert not server.history


def test_device_refuses_what_is_not_of_its_process(folder, tmp_path):
    server, one = deployed.coordinator_of(folder, 3, rounds=2), deployed.device_of(folder, 0)
    task = server.ask(one.hello())
    with pytest.raises(exported.MessageError, match="of the process other, not"):
        one.act(changed(task, {"process": "other"}))
    one.act(task)
    memory = folder / "device_0/memory.npz"
    memory.write_bytes(changed(memory.read_bytes(), {"process": "other"}))
    with pytest.raises(exported.MessageError, match="of the process other, not"):
        deployed.device_of(folder, 0)


def test_truncated_saved_model_is_refused(folder, tmp_path):
    shutil.copytree(folder / "client", tmp_path / "client")
    saved = tmp_path / "client/saved_model.pb"
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(exported.MessageError, match=r"saved_model.pb is damaged"):
        exported.Side(tmp_path / "client")
    with pytest.raises(exported.MessageError, match="has no exported process"):
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

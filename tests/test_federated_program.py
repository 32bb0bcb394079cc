"""Tests that the federated programs of the examples resume after crashes and kills."""

import asyncio
import copy
import importlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal, random_examples, tiny_process
from tests.marks import slow
from tests.own_modules import own_modules
from tests.runs import ROOT, run_python, wait_until
from tff_pfl.algorithms import build_ditto
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.runtime import ProgramContext, create_async_graph_context

FOLDER = ROOT / "examples" / "federated_program"
ROUNDS = 2


class Crash(Exception):
    """A failure that a test causes."""


class Moments:
    """A counter of the moments before and after awaited functions, which crashes at one."""

    def __init__(self, crash_at=None):
        self.passed = 0
        self._crash_at = crash_at

    def around(self, function):
        """Returns a coroutine function with a moment before and after the given one."""

        async def between(*args, **options):
            self._pass()
            result = await function(*args, **options)
            self._pass()
            return result

        return between

    def _pass(self):
        if self.passed == self._crash_at:
            raise Crash
        self.passed += 1


class MemoryStateManager(tff.program.ProgramStateManager):
    """A state manager in memory that saves iterators as bytes, as `FileProgramStateManager`."""

    def __init__(self):
        self.saved = {}

    async def get_versions(self):
        return sorted(self.saved) or None

    async def load(self, version, structure):
        loaded = copy.deepcopy(self.saved[version])
        iterator = type(structure.data_iterator).from_bytes(loaded.data_iterator)
        return loaded._replace(data_iterator=iterator)

    async def save(self, program_state, version):
        assert version not in self.saved
        buffer = program_state.data_iterator.to_bytes()
        self.saved[version] = copy.deepcopy(program_state._replace(data_iterator=buffer))


class Parts:
    """The parts of a program that survive a crash."""

    def __init__(self):
        self.state = MemoryStateManager()
        self.outputs = [tff.program.MemoryReleaseManager() for _ in range(3)]

    def results(self):
        """Returns the released values and the last state of the program."""
        return [dict(output.values()) for output in self.outputs], self.state.saved[ROUNDS]


class Program:
    """The program logic of the example on a tiny federation."""

    def __init__(self, program_logic, evaluation):
        self.process = tiny_process(build_ditto)
        self.logic, self._evaluation = program_logic, evaluation
        self._mean_accuracy = evaluation.build_mean_accuracy(self.process)
        self._context = ProgramContext(create_async_graph_context(vectorize="never"))
        data = [random_examples(5 + i, seed=i) for i in range(3)]
        self._dataset = FederatedDataset.from_client_arrays([(d.x, d.y) * 2 for d in data], 3)

    def arguments(self, parts, moments=None):
        store = ClientStateStore(self.process.initialize_clients, self.process.client_state_type)
        source = CohortDataSource(self._dataset, store, self.process.client_type, seed=5)
        around = (moments or Moments()).around
        managers = [_Between(output, around, "release") for output in parts.outputs]
        return dict(
            initialize=self.process.initialize,
            train=self.process.next,
            train_data_source=source,
            evaluation=self._mean_accuracy,
            evaluation_data_source=self._evaluation.EvaluatedClients(source),
            total_rounds=ROUNDS,
            cohort_size=2,
            train_metrics_manager=managers[0],
            evaluation_metrics_manager=managers[1],
            model_output_manager=managers[2],
            program_state_manager=_Between(parts.state, around, "load", "save"),
        )

    def run(self, **arguments):
        with tff.framework.get_context_stack().install(self._context):
            asyncio.run(self.logic.train_personalized_models(**arguments))


class _Between:
    """A manager with a moment before and after some of its methods."""

    def __init__(self, manager, around, *methods):
        self._manager = manager
        for name in methods:
            setattr(self, name, around(getattr(manager, name)))

    async def load_latest(self, structure):
        versions = await self._manager.get_versions()
        if versions is None:
            return None, 0
        return await self.load(versions[-1], structure), versions[-1]


@pytest.fixture(scope="module")
def program():
    with own_modules(FOLDER):
        sys.path.insert(0, str(FOLDER))
        yield Program(*map(importlib.import_module, ("program_logic", "evaluation")))


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, slow(1), slow(2)])
def test_crash_at_any_moment_does_not_change_numbers(program, monkeypatch, first):
    """Crashes at every third moment, from the first one."""
    materialize = tff.program.materialize_value
    undisturbed, moments = Parts(), Moments()
    monkeypatch.setattr(tff.program, "materialize_value", moments.around(materialize))
    program.run(**program.arguments(undisturbed, moments))
    assert moments.passed > 20
    for crash_at in range(first, moments.passed, 3):
        parts, crashing = Parts(), Moments(crash_at)
        monkeypatch.setattr(tff.program, "materialize_value", crashing.around(materialize))
        with pytest.raises(Crash):
            program.run(**program.arguments(parts, crashing))
        monkeypatch.setattr(tff.program, "materialize_value", materialize)
        program.run(**program.arguments(parts))
        assert_equal(*[_tensors(p.results()) for p in (parts, undisturbed)])


@pytest.mark.thorough
def test_fewer_rounds_than_done_are_refused(program):
    parts = Parts()
    program.run(**program.arguments(parts))
    before = _tensors(parts.results())
    with pytest.raises(
        ValueError, match=f"{ROUNDS} rounds are already done, but total_rounds is 1"
    ):
        program.run(**program.arguments(parts) | {"total_rounds": 1})
    assert_equal(_tensors(parts.results()), before)


def _tensors(results):
    released, saved = results
    buffer = np.frombuffer(saved.data_iterator, np.uint8)
    return [released, saved.state, saved.round_num, buffer]


def test_wrong_types_are_refused(program):
    process = program.process
    arguments = program.arguments(Parts())

    @tff.federated_computation(*process.next.type_signature.parameter)
    def two_results(state, clients):
        return process.next(state, clients)[:2]

    for changed, message in (
        ({"initialize": process.initialize_client}, "The result of `initialize` must be placed at"),
        ({"train": process.personalize}, "`train` must return <state, clients, metrics>, found"),
        ({"train": two_results}, "`train` must return <state, clients, metrics>, found"),
        ({"train": process.initialize}, "`train` must take the state and clients of its source"),
        (
            {"evaluation": process.next},
            "`evaluation` must take the state and clients of its source",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            program.run(**arguments | changed)
    with pytest.raises(ValueError, match="Expected the current context to be a `tff.program"):
        asyncio.run(program.logic.train_personalized_models(**arguments))


ROUNDS_OF_PROGRAMS = 30
KILLED_AFTER = (3, 8, 13, 18, 23)  # rounds; the kill comes a random time later


@pytest.fixture(scope="module")
def tff_worker():
    """Starts a worker on this machine and yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "programs/tff_worker.py", f"--port={port}"]
    worker = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port))
        yield f"127.0.0.1:{port}"
    finally:
        worker.kill()
        worker.wait()


def _listens(port) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _start(name, runtime, folder) -> subprocess.Popen:
    flags = [f"--output_dir={folder}", f"--rounds={ROUNDS_OF_PROGRAMS}", *runtime]
    command = [sys.executable, str(FOLDER / f"{name}.py"), *flags]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


def _rounds_saved(folder) -> int:
    saved = (path.name for path in folder.glob("program_state/program_state_*"))
    return max((int(name[14:]) for name in saved if name[14:].isdigit()), default=-1)


def _outputs(folder) -> dict:
    """Returns the metrics and the last model, without unfinished files of a kill."""
    found = {path.name: path.read_text() for path in folder.glob("*.csv")}
    (path,) = folder.glob(f"model/*round_{ROUNDS_OF_PROGRAMS}")
    found["model"] = [leaf.numpy() for leaf in tf.nest.flatten(tf.saved_model.load(path)())]
    return found


@pytest.mark.slow
def test_program_errors_are_one_message(tmp_path):
    folder, metrics = tmp_path / "program", tmp_path / "program" / "train_metrics.csv"

    def refused(*flags):
        ended = run_python(FOLDER / "program.py", f"--output_dir={folder}", *flags)
        assert (ended.returncode, ended.stderr.count("error: ")) == (1, 1), ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stderr

    process = _start("program", ["--cohort_size=4"], folder)
    wait_until(lambda: _rounds_saved(folder) >= 2)
    assert f"Another program is writing to {folder}" in refused("--cohort_size=4", "--rounds=30")
    process.terminate()
    assert process.wait() == 143
    assert "clients_per_round: 4 then, 5 now" in refused("--rounds=30")
    assert "rounds are already done, but total_rounds is 1" in refused(
        "--cohort_size=4", "--rounds=1"
    )
    whole = metrics.read_text()
    metrics.write_text(whole.replace("5", "6", 1))
    assert f"{metrics} is missing or has changed since" in refused("--cohort_size=4", "--rounds=30")
    metrics.unlink()
    assert f"{metrics} is missing or has changed since" in refused("--cohort_size=4", "--rounds=30")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["graph", "cpp", "remote"])
@pytest.mark.parametrize("name", ["program", "fedavg_program"])
def test_kills_do_not_change_numbers(name, runtime, tmp_path, tff_worker):
    runtime = [f"--runtime={runtime}", *([f"--tff_worker={tff_worker}"] * (runtime == "remote"))]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _start(name, runtime, whole).wait() == 0
    moments = random.Random(0)
    for rounds in KILLED_AFTER:
        process = _start(name, runtime, killed)
        wait_until(lambda rounds=rounds: _rounds_saved(killed) >= rounds)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert _start(name, runtime, killed).wait() == 0
    expected, found = _outputs(whole), _outputs(killed)
    assert len(expected) >= 2
    np.testing.assert_equal(found, expected)

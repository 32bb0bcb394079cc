"""The federated programs of the examples: whatever ends them, they go on as if nothing had been."""

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

from tests.federation import assert_equal, random_examples, tiny_model, tiny_process
from tests.own_modules import own_modules
from tests.runs import ROOT, run_python, wait_until
from tff_pfl.algorithms import build_ditto
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.runtime import ProgramContext, create_async_graph_context

FOLDER = ROOT / "examples" / "federated_program"
ROUNDS = 2


class Crash(Exception):
    """A failure that a test asked for."""


class Moments:
    """Counts the moments before and after what a program waits for; crashes at one of them."""

    def __init__(self, crash_at=None):
        self.passed = 0
        self._crash_at = crash_at

    def around(self, function):
        """The coroutine function, between two moments."""

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
    """Keeps what a `FileProgramStateManager` keeps: values, and iterators as bytes."""

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
    """The parts of a program that outlive a crash."""

    def __init__(self):
        self.state = MemoryStateManager()
        self.outputs = [tff.program.MemoryReleaseManager() for _ in range(3)]

    def results(self):
        """Returns what was released, and the last state of the program."""
        return [dict(output.values()) for output in self.outputs], self.state.saved[ROUNDS]


class Program:
    """The program logic of the example on a tiny federation."""

    def __init__(self, program_logic, evaluation):
        self.process = tiny_process(build_ditto)
        self.logic, self._evaluation = program_logic, evaluation
        self._mean_accuracy = evaluation.build_mean_accuracy(self.process, tiny_model())
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
    """A manager with some methods that are called between two moments."""

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


def test_a_crash_at_any_moment_changes_no_number(program, monkeypatch):
    materialize = tff.program.materialize_value
    undisturbed, moments = Parts(), Moments()
    monkeypatch.setattr(tff.program, "materialize_value", moments.around(materialize))
    program.run(**program.arguments(undisturbed, moments))
    assert moments.passed > 20
    for crash_at in range(moments.passed):
        parts, crashing = Parts(), Moments(crash_at)
        monkeypatch.setattr(tff.program, "materialize_value", crashing.around(materialize))
        with pytest.raises(Crash):
            program.run(**program.arguments(parts, crashing))
        monkeypatch.setattr(tff.program, "materialize_value", materialize)
        program.run(**program.arguments(parts))
        assert_equal(*[_tensors(p.results()) for p in (parts, undisturbed)])


def test_fewer_rounds_than_are_done_are_refused(program):
    parts = Parts()
    program.run(**program.arguments(parts))
    before = _tensors(parts.results())
    with pytest.raises(ValueError, match=f"{ROUNDS} rounds are done already, 1 are asked for"):
        program.run(**program.arguments(parts) | {"total_rounds": 1})
    assert_equal(_tensors(parts.results()), before)


def _tensors(results):
    released, saved = results
    buffer = np.frombuffer(saved.data_iterator, np.uint8)
    return [released, saved.state, saved.round_num, buffer]


def test_types_that_do_not_fit_are_refused(program):
    process = program.process
    arguments = program.arguments(Parts())

    @tff.federated_computation(*process.next.type_signature.parameter)
    def two_results(state, clients):
        return process.next(state, clients)[:2]

    for changed, message in (
        ({"initialize": process.initialize_client}, "The result of `initialize` must be placed at"),
        ({"train": process.personalize}, "`train` returns <state, clients, metrics>, found"),
        ({"train": two_results}, "`train` returns <state, clients, metrics>, found"),
        ({"train": process.initialize}, "`train` takes the state and what its data source"),
        ({"evaluation": process.next}, "`evaluation` takes the state and what its data source"),
    ):
        with pytest.raises(TypeError, match=message):
            program.run(**arguments | changed)
    with pytest.raises(ValueError, match="Expected the current context to be a `tff.program"):
        asyncio.run(program.logic.train_personalized_models(**arguments))


ROUNDS_OF_PROGRAMS = 30
KILLED_AFTER = (3, 8, 13, 18, 23)  # rounds, and a moment


@pytest.fixture(scope="module")
def tff_worker():
    """The address of a worker on this machine."""
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
    """The metrics and the last model; what a kill left half written has another name."""
    found = {path.name: path.read_text() for path in folder.glob("*.csv")}
    (path,) = folder.glob(f"model/*round_{ROUNDS_OF_PROGRAMS}")
    found["model"] = [leaf.numpy() for leaf in tf.nest.flatten(tf.saved_model.load(path)())]
    return found


@pytest.mark.slow
def test_refusals_are_one_sentence(tmp_path):
    folder, metrics = tmp_path / "program", tmp_path / "program" / "train_metrics.csv"

    def refused(*flags):
        ended = run_python(FOLDER / "program.py", f"--output_dir={folder}", *flags)
        assert (ended.returncode, ended.stderr.count("error: ")) == (1, 1), ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stderr

    process = _start("program", ["--cohort_size=4"], folder)
    wait_until(lambda: _rounds_saved(folder) >= 1)
    assert f"Another program is writing to {folder}" in refused("--cohort_size=4", "--rounds=30")
    process.terminate()
    assert process.wait() == 143
    assert "clients_per_round: 4 then, 5 now" in refused("--rounds=30")
    assert "rounds are done already, 0 are asked for" in refused("--cohort_size=4", "--rounds=0")
    whole = metrics.read_text()
    metrics.write_text(whole.replace("5", "6", 1))
    assert f"{metrics} is missing or has changed since" in refused("--cohort_size=4", "--rounds=30")
    metrics.unlink()
    assert f"{metrics} is missing or has changed since" in refused("--cohort_size=4", "--rounds=30")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["graph", "cpp", "remote"])
@pytest.mark.parametrize("name", ["program", "fedavg_program"])
def test_five_kills_change_no_number(name, runtime, tmp_path, tff_worker):
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

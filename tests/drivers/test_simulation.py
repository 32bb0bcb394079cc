"""Tests simulations whose server keeps the states of all clients, under TFF's own drivers."""

import asyncio
import dataclasses
import datetime
import os
import re
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.test_contract import CLIENTS, ROWS
from tests.deployment.test_sequence_data import as_sequence
from tests.drivers.simulated_run import ROUNDS, drive, drive_in
from tests.experiment.killed import Killed, rows_of, run, tiny_dataset, with_validation
from tests.federation import assert_close, assert_equal, tiny_experiment
from tests.marks import slow
from tests.runs import ROOT, run_python, wait_until
from tff_pfl import runtime, testing
from tff_pfl.deployment import compose_with_sequence_data
from tff_pfl.drivers import IdentifiedClient, Simulation, simulation_evaluation, simulation_process
from tff_pfl.evaluation import EvaluatedClient, Evaluation
from tff_pfl.experiment.run_directory import flatten
from tff_pfl.templates import compose

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

SUBJECTS = {row.id: row.subject for row in ROWS}


@pytest.fixture(autouse=True)
def event_loop_of_the_driver():
    """Sets an event loop, which `run_training_process` expects and `asyncio.run` removes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


def identified(clients):
    return [IdentifiedClient(client.client_id, client.data) for client in clients]


def flat(metrics):
    """Returns the metrics of a round as `PersonalizedProcess.next` has them."""
    metrics = dict(metrics)
    return metrics.pop("client_work") | metrics


def assert_simulates(subject, assert_same):
    """Asserts that two rounds equal those of the process, with clients' states kept by hand."""
    process, clients = subject.process, subject.clients((6, 5, 9, 4))
    simulation = simulation_process(process, CLIENTS)
    state, expected = simulation.initialize(), process.initialize()
    for cohort in ((0, 1, 2), (2, 3, 0)):
        chosen = [clients[i] for i in cohort]
        state, metrics = simulation.next(state, identified(chosen))
        expected, states, expected_metrics = process.next(expected, chosen)
        for i, new in zip(cohort, states, strict=True):
            clients[i] = clients[i]._replace(state=new)
        assert_same(flat(metrics), dict(expected_metrics))
        assert_same(state.server, expected)
    for client in [*clients, subject.client(CLIENTS - 1, 0)]:
        own = tf.nest.map_structure(lambda leaf, i=client.client_id: leaf[i], state.clients)
        assert_same(own, client.state)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ditto", *(slow(name) for name in SUBJECTS if name != "ditto")])
def test_rounds_equal_those_of_the_process(name):
    assert_simulates(SUBJECTS[name], assert_equal)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "fedavg", "fedamp-lambda_-alpha-sigma-distance_scale"])
@pytest.mark.parametrize("create", [runtime.create_graph_context, runtime.create_cpp_context])
def test_rounds_equal_those_of_the_process_in_each_runtime(name, create):
    with tff.framework.get_context_stack().install(create()):
        assert_simulates(SUBJECTS[name], assert_close)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "report"), [("ditto", "clear"), ("ditto", "none"), ("fedavg", "clear")]
)
def test_wrong_ids_are_refused(name, report):
    subject = SUBJECTS[name]
    algorithm = dataclasses.replace(subject.algorithm, report=report)
    process = compose(algorithm, testing.EXAMPLES_TYPE)
    simulation = simulation_process(process, 2)
    state = simulation.initialize()
    for ids, message in (((0, 2), "num_clients=2: ids 0 to 1"), ((1, 1), "in a cohort twice")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            simulation.next(state, identified(subject.client(i, 4) for i in ids))


@pytest.fixture(scope="module")
def dataset():
    return tiny_dataset()


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["ditto", slow("fedpg")])
def test_run_of_tff_has_the_numbers_of_train(algorithm, dataset, tmp_path):
    options = Evaluation(every=2, clients=3, validation=True, generalization="last")
    dataset, fields = with_validation(dataset), {"rounds": 4, "evaluation": options}
    expected = run(tmp_path, dataset, algorithm, **fields)
    manager = tff.program.MemoryReleaseManager()
    state = drive(tiny_experiment(dataset, algorithm, **fields), manager)
    assert_equal(state.server, expected.server_state)
    rounds = manager.values()
    for row in rows_of(tmp_path):
        theirs = {
            re.sub("^(client_work|evaluation)/", "", name): value
            for name, value in flatten(rounds[int(row["round"])], "/").items()
        }
        ours = {name: float(text) for name, text in row.items() if text}
        for name in ("round", "num_clients_never_selected"):
            ours.pop(name, None)
        assert ours == {name: theirs.get(name) for name in ours}


class KilledInRound3(tff.program.MemoryReleaseManager):
    async def release(self, value, key):
        if key == 3:
            raise Killed
        await super().release(value, key)


@pytest.mark.thorough
def test_killed_run_resumes_to_the_same_numbers(dataset, tmp_path):
    experiment = tiny_experiment(dataset, rounds=4)
    expected = drive(experiment, tff.program.MemoryReleaseManager())
    states = {"program_state_manager": tff.program.FileProgramStateManager(tmp_path / "states")}
    with pytest.raises(Killed):
        drive(experiment, KilledInRound3(), **states)
    later = tff.program.MemoryReleaseManager()
    assert_equal(drive(experiment, later, **states), expected)
    assert list(later.values()) == [3, 4]


@pytest.mark.slow
def test_run_ended_by_sigkill_resumes_to_the_same_numbers(dataset, tmp_path):
    program = "tests.drivers.simulated_run"
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", program, killed],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: (killed / "states/program_state_3").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 3 <= len(rows_of(killed)) <= ROUNDS
    done = run_python("-m", program, killed)
    assert done.returncode == 0, done.stderr
    drive_in(whole)
    assert len(rows_of(whole)) == 1 + ROUNDS
    assert numbers_of(killed) == numbers_of(whole)
    structure = Simulation(tiny_experiment(dataset, rounds=ROUNDS)).process.initialize()
    of_killed, of_whole = (
        asyncio.run(tff.program.FileProgramStateManager(path / "states").load(ROUNDS, structure))
        for path in (killed, whole)
    )
    assert_equal(of_killed, of_whole)


def numbers_of(folder):
    """Returns the rows of metrics without times."""
    return [
        {name: text for name, text in row.items() if "time_in_seconds" not in name}
        for row in rows_of(folder)
    ]


@pytest.mark.thorough
def test_train_model_trains_and_evaluates_personal_models(dataset, tmp_path):
    experiment = tiny_experiment(dataset, rounds=2)
    expected = run(tmp_path / "run", dataset, rounds=2)
    simulation = Simulation(experiment)
    states, evaluations = tff.program.MemoryReleaseManager(), tff.program.MemoryReleaseManager()

    def state_manager(name):
        return tff.program.FileProgramStateManager(tmp_path / name, keep_total=0)

    program = tff.learning.programs.train_model(
        train_process=simulation.process,
        train_data_source=simulation.train_data_source,
        train_per_round_clients=experiment.cohort_size,
        train_total_rounds=experiment.rounds,
        program_state_manager=state_manager("training"),
        model_output_manager=states,
        evaluation_manager=tff.learning.programs.EvaluationManager(
            simulation.evaluation_data_source,
            evaluations,
            state_manager,
            lambda name: (simulation.evaluation_process, None),
            cohort_size=dataset.num_clients,
            duration=datetime.timedelta(0),
        ),
        evaluation_periodicity=2,
    )
    context = runtime.ProgramContext(runtime.create_async_graph_context(vectorize="never"))
    with tff.framework.get_context_stack().install(context):
        asyncio.run(program)
    assert_equal(states.values()["training_checkpoint_round_2"].server, expected.server_state)
    found = evaluations.values()[2]["model_metrics"]
    clients = rows_of(tmp_path / "run", "clients/round_000002.csv")
    sizes = [int(row["num_examples"]) for row in clients]
    assert found.keys() == {"personalized", "global"}
    for model, means in found.items():
        assert means.pop("num_examples") == sum(sizes)
        for name, mean in means.items():
            values = [float(row[f"{model}/local_test/{name}"]) for row in clients]
            assert_close(mean, np.float32(np.average(values, weights=sizes)))


def test_evaluation_takes_examples_and_sequences_of_known_clients():
    process = SUBJECTS["ditto"].process
    element = tff.types.to_type([("x", (np.float32, (4, 4, 1))), ("y", np.int32)])
    of_sequences = compose_with_sequence_data(process, element, capacity=9)
    clients = [SUBJECTS["ditto"].client(i, size) for i, size in enumerate((6, 5))]
    found = []
    for evaluated, data_of in ((process, lambda data: data), (of_sequences, as_sequence)):
        evaluation = simulation_evaluation(evaluated, 2)
        state = evaluation.initialize()
        cohort = [
            EvaluatedClient(IdentifiedClient(i, data_of(client.data)), data_of(client.data))
            for i, client in zip((0, 1), clients, strict=True)
        ]
        found.append(evaluation.next(state, cohort).metrics["client_work"]["eval"])
        # The stock runtime sends errors from its worker.
        errors = (tf.errors.InvalidArgumentError, grpc.RpcError)
        with pytest.raises(errors, match="ids 0 to 1"):
            evaluation.next(
                state, [cohort[0]._replace(client=cohort[0].client._replace(client_id=2))]
            )
    assert found[0]["total_rounds_metrics"]["personalized"]["num_examples"] == 11
    assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize("create", [runtime.create_graph_context, runtime.create_cpp_context])
def test_evaluation_takes_examples_and_sequences_in_each_runtime(create):
    with tff.framework.get_context_stack().install(create()):
        test_evaluation_takes_examples_and_sequences_of_known_clients()

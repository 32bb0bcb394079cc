"""Tests simulations whose server keeps the states of all clients, under TFF's own drivers."""

import asyncio

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.test_contract import CLIENTS, ROWS
from tests.experiment.killed import Killed, rows_of, run
from tests.federation import assert_close, assert_equal, random_examples, tiny_experiment
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.data import FederatedDataset
from tff_pfl.deployment import IdentifiedClient, Simulation, simulation_process
from tff_pfl.evaluation import Evaluation

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


@pytest.mark.parametrize("name", ["ditto", *(slow(name) for name in SUBJECTS if name != "ditto")])
def test_rounds_equal_those_of_the_process(name):
    assert_simulates(SUBJECTS[name], assert_equal)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "fedavg", "fedamp-lambda_-alpha-sigma-distance_scale"])
@pytest.mark.parametrize("create", [runtime.create_graph_context, runtime.create_cpp_context])
def test_rounds_equal_those_of_the_process_in_each_runtime(name, create):
    with tff.framework.get_context_stack().install(create()):
        assert_simulates(SUBJECTS[name], assert_close)


@pytest.mark.parametrize("name", ["ditto", "fedavg"])
def test_wrong_ids_are_refused(name):
    subject = SUBJECTS[name]
    simulation = simulation_process(subject.process, 2)
    state = simulation.initialize()
    for ids, message in (((0, 2), "num_clients=2: ids 0 to 1"), ((1, 1), "in a cohort twice")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            simulation.next(state, identified(subject.client(i, 4) for i in ids))


def test_global_model_can_be_set():
    process = simulation_process(SUBJECTS["ditto"].process, 2)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    state = process.initialize()
    weights = tf.nest.map_structure(lambda leaf: leaf + 1, process.get_model_weights(state))
    changed = process.set_model_weights(state, weights)
    assert_equal(process.get_model_weights(changed), weights)
    assert_equal(changed.clients, state.clients)


@pytest.fixture(scope="module")
def dataset():
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


def drive(experiment, metrics_manager, **options):
    simulation = Simulation(experiment)
    return tff.simulation.run_training_process(
        simulation.process,
        simulation.training_selection_fn,
        experiment.rounds,
        evaluation_fn=simulation.evaluation_fn,
        evaluation_selection_fn=simulation.evaluation_selection_fn,
        rounds_per_evaluation=experiment.evaluation.every,
        metrics_managers=[metrics_manager],
        **options,
    )


@pytest.mark.parametrize("algorithm", ["ditto", slow("fedpg")])
def test_run_of_tff_has_the_numbers_of_train(algorithm, dataset, tmp_path):
    fields = {"rounds": 4, "evaluation": Evaluation(every=2, clients=3)}
    expected = run(tmp_path, dataset, algorithm, **fields)
    manager = tff.program.MemoryReleaseManager()
    state = drive(tiny_experiment(dataset, algorithm, **fields), manager)
    assert_equal(state.server, expected.server_state)
    rounds = manager.values()
    for row in rows_of(tmp_path):
        found = rounds[int(row["round"])]
        for exchange, metrics in found.pop("client_work").items():
            assert {float(row[f"{exchange}/{name}"]) for name in metrics} == set(
                map(float, metrics.values())
            )
        evaluated = {name for name in found if name.startswith("evaluation/")}
        assert bool(evaluated) == (int(row["round"]) % 2 == 0)
        for name in evaluated - {"evaluation/evaluation_time_in_seconds"}:
            assert float(row[name.removeprefix("evaluation/")]) == found[name]


class KilledInRound3(tff.program.MemoryReleaseManager):
    async def release(self, value, key):
        if key == 3:
            raise Killed
        await super().release(value, key)


def test_killed_run_resumes_to_the_same_numbers(dataset, tmp_path):
    experiment = tiny_experiment(dataset, rounds=4)
    expected = drive(experiment, tff.program.MemoryReleaseManager())
    states = {"program_state_manager": tff.program.FileProgramStateManager(tmp_path / "states")}
    with pytest.raises(Killed):
        drive(experiment, KilledInRound3(), **states)
    later = tff.program.MemoryReleaseManager()
    assert_equal(drive(experiment, later, **states), expected)
    assert list(later.values()) == [3, 4]


def test_train_model_trains_a_personalized_process(dataset, tmp_path):
    experiment = tiny_experiment(dataset, rounds=2)
    expected = drive(experiment, tff.program.MemoryReleaseManager())
    simulation = Simulation(experiment)
    states, metrics = tff.program.MemoryReleaseManager(), tff.program.MemoryReleaseManager()
    program = tff.learning.programs.train_model(
        train_process=simulation.process,
        train_data_source=simulation.train_data_source,
        train_per_round_clients=experiment.cohort_size,
        train_total_rounds=experiment.rounds,
        program_state_manager=tff.program.FileProgramStateManager(tmp_path / "states"),
        model_output_manager=states,
        train_metrics_manager=metrics,
        evaluation_manager=None,
        evaluation_periodicity=1,
    )
    context = runtime.ProgramContext(runtime.create_async_graph_context(vectorize="never"))
    with tff.framework.get_context_stack().install(context):
        asyncio.run(program)
    assert_equal(states.values()["training_checkpoint_round_2"], expected)
    assert list(metrics.values()) == [1, 2]

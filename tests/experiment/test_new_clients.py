"""Tests clients that do not train, but fine-tune the global model at the end."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.experiment.killed import rows_of
from tests.federation import (
    assert_close,
    assert_equal,
    local_sgd,
    tiny_algorithm,
    tiny_experiment,
    tiny_model,
)
from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl import algorithms, runtime
from tff_pfl.config import ConfigError, build_dataset
from tff_pfl.evaluation import Evaluation, MetricName
from tff_pfl.evaluation.fine_tuning import fine_tuning
from tff_pfl.experiment import NewClients, train
from tff_pfl.experiment.summary import NUM_CLIENTS_NEVER_SELECTED
from tff_pfl.local import ClientContext, LocalTraining, evaluate, seeds
from tff_pfl.templates import Client


def stated(dataset, algorithm="fedavg", epochs=2, evaluation=None, **new_clients):
    """States an experiment that holds out two of five clients."""
    new_clients = NewClients(2, epochs, **new_clients)
    evaluation = evaluation or Evaluation(every=2)
    return tiny_experiment(
        dataset, algorithm, rounds=2, new_clients=new_clients, evaluation=evaluation
    )


def context_of(row, round_num):
    """Returns the context in which a new client fine-tunes."""
    seed = seeds.run_seed(3, seeds.FINE_TUNING)
    seed = seeds.client_seed(seed, np.int32(round_num), np.int32(row))
    return ClientContext(np.int32(round_num), np.int32(row), seed).of_evaluation()


def assert_evaluated(experiment, columns, row, models):
    """Asserts that a new client's numbers are those of models on its test examples."""
    for name, weights in models.items():
        totals = evaluate(experiment.model, weights, experiment.newcomers.examples(row, "test"))
        for metric in ("loss", "accuracy"):
            assert columns[f"{name}/new_clients_test/{metric}"][row] == pytest.approx(
                float(totals[metric].mean), rel=1e-5
            )


def test_last_clients_are_held_out_with_their_data(dataset):
    experiment = stated(dataset)
    members, new = experiment.members, experiment.newcomers
    assert (members.num_clients, new.num_clients) == (3, 2)
    for split in ("train", "test"):
        for i in range(3):
            assert_equal(members.examples(i, split), dataset.examples(i, split))
        for i in range(2):
            assert_equal(new.examples(i, split), dataset.examples(i + 3, split))
    without = tiny_experiment(dataset)
    assert without.members is dataset and without.newcomers is None


def test_partition_of_a_run_lacks_the_held_out_clients(tmp_path):
    whole, path = build_dataset(tiny_config()), tmp_path / "partition.npz"
    NewClients(2).split(whole)[0].partition.save(path)
    config = tiny_config(data={"partition_file": str(path)}, new_clients={"number": 2})
    with pytest.raises(ConfigError, match="has only the 2 clients .*number=2 would hold out more"):
        build_dataset(config)
    config.new_clients.number = 0
    np.testing.assert_array_equal(build_dataset(config).sizes(), whole.sizes()[:2])


@pytest.mark.thorough
def test_evaluation_measures_the_global_model_before_and_after_fine_tuning(dataset):
    """Checks that the optimizer is new and has its own constant rate.

    The ids of new clients follow those of the training clients, for any order of the data.
    """
    optimizer = tff.learning.optimizers.build_sgdm(0.1, 0.9)
    options = {"epochs": 3, "batch_size": 4, "learning_rate_decay": 0.5}
    local = LocalTraining(optimizer, persist_optimizer_state=True, **options)
    experiment = stated(
        dataset.of([3, 1, 4, 2, 0]),
        algorithms.make("fedavg", tiny_model(), local),
        evaluation=Evaluation(further_models=("locally_trained",), fine_tune_learning_rate=0.3),
    )
    local = dataclasses.replace(local, persist_optimizer_state=False)
    optimizer = tff.learning.optimizers.build_sgdm(0.3, 0.9)
    tuning = dataclasses.replace(local, optimizer=optimizer, learning_rate_decay=1.0)
    process = experiment.process
    state = process.initialize()._replace(round_num=np.int32(7))
    columns = experiment.new_clients_evaluation(state).columns()
    assert list(columns["client_id"]) == [3, 4]
    assert experiment.newcomers.partition.metadata["clients"] == [2, 0]
    weights = process.global_weights(state)
    for i in range(2):
        examples = experiment.newcomers.examples(i, "train")
        tuned = tuning.train(tiny_model(), weights, examples, context_of(i, 7), epochs=2).weights
        trained = local.train(tiny_model(), weights, examples, context_of(i, 7)).weights
        models = {"global": weights, "fine_tuned": tuned, "locally_trained": trained}
        assert_evaluated(experiment, columns, i, models)
    assert_close(list(experiment.new_clients_evaluation.models(state, [1])), [tuned])


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    """Returns a run of two rounds, which are both evaluated."""
    return train(stated(dataset, evaluation=Evaluation(every=1)), tmp_path_factory.mktemp("run"))


@pytest.mark.thorough
def test_run_does_not_train_on_new_clients(run):
    result, folder = run.result, pathlib.Path(run.folder)
    rows = rows_of(folder, "new_clients.csv")
    assert [row["client_id"] for row in rows] == ["3", "4"]
    name = MetricName("fine_tuned", "new_clients_test", "accuracy")
    mean = np.mean([float(row[str(name)]) for row in rows])
    assert result.final.metrics[name._replace(statistic="mean")] == pytest.approx(mean)
    assert result.final.metrics[NUM_CLIENTS_NEVER_SELECTED] == 0  # of those that train
    # Only the last round evaluates new clients.
    column = [row["global/new_clients_test/loss_mean"] for row in rows_of(folder)]
    assert [bool(value) for value in column] == [False, True]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fedper", {"personal_layers": ("head",)}),
        slow("local", {}),
        slow("ifca", {"num_clients": 3}),
    ],
)
def test_new_clients_start_like_clients_that_never_took_part_without_a_global_model(
    dataset, algorithm, options
):
    experiment = stated(dataset, tiny_algorithm(algorithm, **options))
    process = experiment.process
    state = process.initialize()._replace(round_num=np.int32(1))
    columns = experiment.new_clients_evaluation(state).columns()
    for i in range(2):
        examples = experiment.newcomers.examples(i, "train")
        # New clients are the last two of five; their batches are drawn by their rows.
        client = Client(np.int32(3 + i), process.initialize_client(3 + i), examples)
        (weights,) = process.personalize(state, [client])
        tuned = local_sgd().train(tiny_model(), weights, examples, context_of(i, 1), epochs=2)
        models = {"personalized": weights, "fine_tuned": tuned.weights}
        assert_evaluated(experiment, columns, i, models)
    assert not any(name.startswith("global/") for name in columns)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "create_context"),
    [
        ("pfedhn", lambda: runtime.create_graph_context(vectorize="never")),
        slow("pfedhn_pc", lambda: runtime.create_graph_context(vectorize="always")),
        slow("plgu_ghn", runtime.create_cpp_context),
    ],
)
def test_new_clients_of_a_hypernetwork_fit_an_embedding(dataset, algorithm, create_context):
    sizes = {"num_clients": 3, "clients_per_round": 2, "embedding_dim": 4}
    sizes |= {"hidden_width": 8, "hidden_layers": 1}
    evaluation = Evaluation(fine_tune_learning_rate=1.0)
    algorithm = tiny_algorithm(algorithm, **sizes)
    experiment = stated(dataset, algorithm, evaluation=evaluation)
    with tff.framework.get_context_stack().install(create_context()):
        state = experiment.process.initialize()._replace(round_num=np.int32(1))
        columns = experiment.new_clients_evaluation(state).columns()
    new = experiment.process.algorithm.personalize.new_clients
    message = new.distribute(state.algorithm)
    own = new.init(message, experiment.seed)
    tune = fine_tuning(
        tiny_model(),
        local_sgd(1.0),
        epochs=2,
        weights_of=lambda parameters: new.weights(message, parameters),
    )
    for i in range(2):
        tuned = tune(own, experiment.newcomers.examples(i, "train"), context_of(i, 1))
        models = {"personalized": new.weights(message, own), "fine_tuned": tuned}
        assert_evaluated(experiment, columns, i, models)
    losses = [columns[f"{name}/new_clients_test/loss"] for name in ("personalized", "fine_tuned")]
    assert np.all(losses[0] != losses[1])
    assert columns["client_id"].tolist() == [3, 4]


@pytest.mark.thorough
def test_baseline_may_hold_out_new_clients_without_evaluating_them(dataset, run, tmp_path):
    baseline = train(stated(dataset, evaluated=False), tmp_path / "baseline")
    assert not (tmp_path / "baseline" / "new_clients.csv").exists()
    assert baseline.evaluate().new_clients is None
    with pytest.raises(ValueError, match="Client 4 was held out and .*evaluated=False.*, so it"):
        baseline.export(tmp_path / "models", [4])
    compared = run.evaluate(baseline=baseline)
    assert len(compared.new_clients.client_ids) == 2
    assert len(compared.baseline.clients.client_ids) == 3
    # New clients are a further group, which has no gains over the baseline.
    name = MetricName("fine_tuned", "new_clients_test", "accuracy")
    of_clients = compared.new_clients.values[name]
    assert compared.distributions()["new_clients"][name].mean == of_clients.mean()
    assert compared.final.metrics[name._replace(statistic="mean")] == of_clients.mean()
    assert "new_clients" not in compared.gains()
    assert compared.write(str(tmp_path / "x"))[3:] == [f"{tmp_path / 'x'}_new_clients.csv"]
    written = [float(client[str(name)]) for client in rows_of(tmp_path, "x_new_clients.csv")]
    assert written == list(of_clients)

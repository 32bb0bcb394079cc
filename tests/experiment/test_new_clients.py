"""Tests clients that do not train, but fine-tune the global model at the end."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal
from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl import runtime
from tff_pfl.config import ConfigError, build_dataset, experiment_of, run_of
from tff_pfl.evaluation import ClientMetrics, MetricName
from tff_pfl.evaluation.fine_tuning import fine_tuning
from tff_pfl.evaluation.new_clients import with_best_epoch
from tff_pfl.local import ClientContext, evaluate, seeds
from tff_pfl.templates import Client


def config_of(algorithm="fedavg", number=2, **changes):
    return tiny_config(algorithm, new_clients={"number": number, "fine_tune_epochs": 2}, **changes)


class Setup:
    def __init__(self, config):
        experiment = experiment_of(config)
        self.dataset, self.new_clients = experiment.members, experiment.newcomers
        self.model, self.process = experiment.model, experiment.process
        self.local = experiment.new_clients.local
        self.evaluation = experiment.new_clients_evaluation

    def assert_evaluated(self, columns, row, models):
        """Asserts that a new client's numbers are those of models on its test examples."""
        for name, weights in models.items():
            totals = evaluate(self.model, weights, self.new_clients.examples(row, "test"))
            for metric in ("loss", "accuracy"):
                assert columns[f"{name}/new_clients_test/{metric}"][row] == pytest.approx(
                    float(totals[metric].mean), rel=1e-5
                )


def test_last_clients_are_held_out_with_their_data():
    experiment = experiment_of(config_of())
    whole, train, new = experiment.dataset, experiment.members, experiment.newcomers
    assert (train.num_clients, new.num_clients) == (2, 2)
    for i in range(2):
        for split in ("train", "test"):
            np.testing.assert_array_equal(train.examples(i, split).x, whole.examples(i, split).x)
            np.testing.assert_array_equal(new.examples(i, split).y, whole.examples(i + 2, split).y)
    without = experiment_of(config_of(number=0))
    assert without.members is without.dataset and without.newcomers is None


@pytest.fixture(scope="module")
def with_new(finished_run):
    """Returns the directory of a run of two rounds that held out two of four clients."""
    return finished_run("fedavg", new_clients={"number": 2, "fine_tune_epochs": 2})


def test_partition_of_a_run_lacks_the_held_out_clients(with_new):
    config = config_of()
    config.data.partition_file = str(with_new / "partition.npz")
    with pytest.raises(ConfigError, match="has only the 2 clients .*number=2 would hold out more"):
        build_dataset(config)
    config.new_clients.number = 0
    whole = build_dataset(config_of())
    np.testing.assert_array_equal(build_dataset(config).sizes(), whole.sizes()[:2])


def test_evaluation_measures_the_global_model_before_and_after_fine_tuning(tmp_path):
    """Checks that the optimizer is new and has its own constant rate.

    The ids of new clients follow those of the training clients, for any partition file.
    """
    config = config_of(local={"persist_optimizer_state": True, "momentum": 0.9, "epochs": 3})
    config.evaluation.further_models = ("locally_trained",)
    config.evaluation.fine_tune_learning_rate = 0.3
    config.local.learning_rate_decay = 0.5
    path = str(tmp_path / "partition.npz")
    build_dataset(config).of([3, 1, 2, 0]).partition.save(path)
    config.data.update(partition_file=path, num_clients=99)
    setup = Setup(config)
    local = dataclasses.replace(setup.local, persist_optimizer_state=False)
    optimizer = tff.learning.optimizers.build_sgdm(0.3, 0.9)
    fine_tuning = dataclasses.replace(local, optimizer=optimizer, learning_rate_decay=1.0)
    state = setup.process.initialize()._replace(round_num=np.int32(7))
    columns = setup.evaluation(state).columns()
    assert list(columns["client_id"]) == [2, 3]
    assert setup.new_clients.partition.metadata["clients"] == [2, 0]
    weights = setup.process.global_weights(state)
    for i in range(2):
        examples = setup.new_clients.examples(i, "train")
        seed = seeds.client_seed(seeds.run_seed(0, seeds.FINE_TUNING), np.int32(7), np.int32(i))
        context = ClientContext(np.int32(7), np.int32(i), seed).of_evaluation()
        tuned = fine_tuning.train(setup.model, weights, examples, context, epochs=2).weights
        trained = local.train(setup.model, weights, examples, context).weights
        models = {"global": weights, "fine_tuned": tuned, "locally_trained": trained}
        setup.assert_evaluated(columns, i, models)
    assert_close(list(setup.evaluation.models(state, [1])), [tuned])


def test_best_epoch_has_the_best_mean_over_clients():
    """Compares each epoch's model with a training of as many epochs."""
    config = config_of(local={"momentum": 0.99, "learning_rate": 3.0})
    config.new_clients.update(fine_tune_epochs=(epochs := 3), best_epoch=True)
    setup = Setup(config)
    state = setup.process.initialize()
    weights = setup.process.global_weights(state)
    columns = setup.evaluation(state).columns()
    after = {"loss": [], "accuracy": []}
    for i in range(2):
        seed = seeds.client_seed(seeds.run_seed(0, seeds.FINE_TUNING), np.int32(0), np.int32(i))
        context = ClientContext(np.int32(0), np.int32(i), seed)
        examples, test = (setup.new_clients.examples(i, split) for split in ("train", "test"))
        models = [
            setup.local.train(setup.model, weights, examples, context, epochs=n).weights
            for n in range(epochs + 1)
        ]
        totals = [evaluate(setup.model, w, test) for w in models]
        for metric, values in after.items():
            values.append([float(total[metric].mean) for total in totals])
    for metric, best in (("loss", np.argmin), ("accuracy", np.argmax)):
        values = np.array(after[metric])
        epoch = best(values.mean(0))
        assert epoch not in (0, epochs)  # else the test could not fail
        for name, number in (("fine_tuned_best_epoch", epoch), ("fine_tuned", epochs)):
            actual = columns[f"{name}/new_clients_test/{metric}"]
            np.testing.assert_allclose(actual, values[:, number], rtol=1e-5)


def test_best_epoch_ignores_clients_without_examples_and_diverged_models():
    def named(model, metric):
        return MetricName(model, "new_clients_test", metric)

    clients = ClientMetrics(
        np.arange(3),
        np.array([5, 0, 5]),
        {
            named("global", "loss"): np.array([3.0, np.nan, 3.0]),
            named("fine_tuned_by_epoch", "loss"): np.array(
                [[1.0, 2.0, 0.1], [np.nan] * 3, [4.0, 2.0, np.nan]]
            ),
            named("global", "accuracy"): np.array([0.2, np.nan, 0.7]),
            named("fine_tuned_by_epoch", "accuracy"): np.array(
                [[0.1, 0.2, 0.3], [np.nan] * 3, [0.5, 0.6, 0.5]]
            ),
        },
    )
    values = with_best_epoch(clients, "global").values
    expected = {
        named("global", "loss"): [3.0, np.nan, 3.0],
        named("fine_tuned", "loss"): [0.1, np.nan, np.nan],
        named("fine_tuned_best_epoch", "loss"): [2.0, np.nan, 2.0],
        named("global", "accuracy"): [0.2, np.nan, 0.7],
        named("fine_tuned", "accuracy"): [0.3, np.nan, 0.5],
        named("fine_tuned_best_epoch", "accuracy"): [0.2, np.nan, 0.7],
    }
    assert_equal(values, {name: np.array(of_clients) for name, of_clients in expected.items()})


def test_run_does_not_train_on_new_clients(with_new):
    with open(with_new / "new_clients.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["client_id"] for row in rows] == ["2", "3"]
    final = json.loads((with_new / "summary.json").read_text())["final"]["metrics"]
    mean = np.mean([float(row["fine_tuned/new_clients_test/accuracy"]) for row in rows])
    assert final["fine_tuned/new_clients_test/accuracy_mean"] == pytest.approx(mean)
    assert final["num_clients_never_selected"] == 0  # both training clients took part
    # Only the last round evaluates new clients.
    with open(with_new / "metrics.csv") as file:
        column = [row["global/new_clients_test/loss_mean"] for row in csv.DictReader(file)]
    assert [bool(value) for value in column] == [False, True]


@pytest.mark.parametrize("algorithm", ["fedper", slow("local"), slow("ifca")])
def test_new_clients_start_like_clients_that_never_took_part_without_a_global_model(algorithm):
    config = config_of(algorithm)
    config.new_clients.best_epoch = True
    setup = Setup(config)
    state = setup.process.initialize()._replace(round_num=np.int32(1))
    columns = setup.evaluation(state).columns()
    for i in range(2):
        examples = setup.new_clients.examples(i, "train")
        # New clients are the last two of four; their batches are drawn by their rows.
        client = Client(np.int32(2 + i), setup.process.initialize_client(2 + i), examples)
        (weights,) = setup.process.personalize(state, [client])
        seed = seeds.client_seed(seeds.run_seed(0, seeds.FINE_TUNING), np.int32(1), np.int32(i))
        context = ClientContext(np.int32(1), np.int32(i), seed)
        tuned = setup.local.train(setup.model, weights, examples, context, epochs=2).weights
        setup.assert_evaluated(columns, i, {"personalized": weights, "fine_tuned": tuned})
    assert "fine_tuned_best_epoch/new_clients_test/loss" in columns
    assert not any(name.startswith("global/") for name in columns)


@pytest.mark.parametrize(
    ("algorithm", "create_context"),
    [
        ("pfedhn", lambda: runtime.create_graph_context(vectorize="never")),
        slow("pfedhn_pc", lambda: runtime.create_graph_context(vectorize="always")),
        slow("plgu_ghn", runtime.create_cpp_context),
    ],
)
def test_new_clients_of_a_hypernetwork_fit_an_embedding(algorithm, create_context):
    config = config_of(algorithm)
    config.algorithm.update(hidden_width=3, hidden_layers=1)
    config.new_clients.best_epoch = True
    config.evaluation.fine_tune_learning_rate = 1.0
    with tff.framework.get_context_stack().install(create_context()):
        setup = Setup(config)
        state = setup.process.initialize()._replace(round_num=np.int32(1))
        columns = setup.evaluation(state).columns()
    new = setup.process.algorithm.personalize.new_clients
    message = new.distribute(state.algorithm)
    own = new.init(message, config.seed)
    optimizer = tff.learning.optimizers.build_sgdm(1.0)
    tune = fine_tuning(
        setup.model,
        dataclasses.replace(setup.local, optimizer=optimizer),
        epochs=2,
        weights_of=lambda parameters: new.weights(message, parameters),
    )
    for i in range(2):
        seed = seeds.client_seed(seeds.run_seed(0, seeds.FINE_TUNING), np.int32(1), np.int32(i))
        context = ClientContext(np.int32(1), np.int32(i), seed)
        tuned = tune(own, setup.new_clients.examples(i, "train"), context)
        models = {"personalized": new.weights(message, own), "fine_tuned": tuned}
        setup.assert_evaluated(columns, i, models)
    losses = [columns[f"{name}/new_clients_test/loss"] for name in ("personalized", "fine_tuned")]
    assert np.all(losses[0] != losses[1])
    assert columns["client_id"].tolist() == [2, 3]


def test_methods_without_a_model_for_new_clients_are_refused():
    config = config_of("ifca")
    config.algorithm.fixed_clusters = (0, 1)
    with pytest.raises(ValueError, match="but this algorithm has none"):
        Setup(config)


def test_baseline_may_hold_out_new_clients_without_evaluating_them(
    with_new, finished_run, tmp_path
):
    held_out = {"number": 2, "fine_tune_epochs": 2, "evaluated": False}
    baseline = finished_run("local", new_clients=held_out)
    assert not (baseline / "new_clients.csv").exists()
    baseline_run = run_of(baseline)
    assert baseline_run.evaluate().new_clients is None
    with pytest.raises(ValueError, match="Client 3 was held out and .*evaluated=False.*, so it"):
        baseline_run.export(tmp_path / "models", [3])
    compared = run_of(with_new).evaluate(baseline=baseline_run)
    assert len(compared.new_clients.client_ids) == 2
    assert len(compared.baseline.clients.client_ids) == 2
    # New clients are a further group, which has no gains over the baseline.
    name = MetricName("fine_tuned", "new_clients_test", "accuracy")
    of_clients = compared.new_clients.values[name]
    assert compared.distributions()["new_clients"][name].mean == of_clients.mean()
    assert compared.final.metrics[name._replace(statistic="mean")] == of_clients.mean()
    assert "new_clients" not in compared.gains()
    assert compared.write(str(tmp_path / "x"))[3:] == [f"{tmp_path / 'x'}_new_clients.csv"]
    with open(tmp_path / "x_new_clients.csv", newline="") as file:
        assert [float(client[str(name)]) for client in csv.DictReader(file)] == list(of_clients)

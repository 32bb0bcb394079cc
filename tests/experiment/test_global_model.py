"""Tests a method whose global model is another network than clients' own."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, local_sgd, tiny_experiment, tiny_model
from tff_pfl import models
from tff_pfl.algorithms import make
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import NewClients, train
from tff_pfl.local import evaluate, trees
from tff_pfl.templates import ClientOutput, averaging

pytestmark = pytest.mark.thorough

OWN, SHARED = tiny_model(), models.build("mlp", (4, 4, 1), 3, hidden=(7,))


def beside_an_own_network(model, local):
    """Averages one network, and keeps another one as it is."""

    def client_work(weights, state, examples, context):
        trained = local.train(SHARED, weights, examples, context)
        change = trees.subtract(trained.weights, weights)
        return ClientOutput(state, upload=change, metrics=trained.totals)

    return averaging(
        SHARED.init,
        client_work,
        lambda weights, state, examples, context: state,
        client_init=lambda client_id, seed: model.init(seed),
        global_weights=lambda weights: weights,
        global_model=SHARED,
    )


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    evaluation = Evaluation(every=1, generalization="last", further_models=("locally_trained",))
    experiment = tiny_experiment(
        dataset,
        make(beside_an_own_network, OWN, local_sgd()),
        rounds=1,
        evaluation=evaluation,
        new_clients=NewClients(1, 1),
    )
    return train(experiment, tmp_path_factory.mktemp("runs") / "run", verbose=False)


def test_each_model_is_evaluated_by_its_own_network(run):
    experiment = run.experiment
    with run.restored() as found:
        weights = experiment.process.global_weights(found.server_state)
        (own, *_) = experiment.evaluator.models(found.server_state, found.source, [0])
        measured = experiment.evaluator(found.server_state, found.source, is_last=True).values
    test = experiment.members.examples(0, "test")
    values = {str(name): of_clients for name, of_clients in measured.items()}
    for name, model, its in (("personalized", OWN, own), ("global", SHARED, weights)):
        expected = evaluate(model, its, test)["loss"].mean
        assert values[f"{name}/local_test/loss"][0] == pytest.approx(float(expected), rel=1e-5)
    shares = {f"{name}/generalization_test/accuracy" for name in ("personalized", "global")}
    assert {*shares, "locally_trained/local_test/loss"} <= values.keys()


def test_new_clients_fine_tune_the_global_model(run):
    evaluation = run.experiment.new_clients_evaluation
    with run.restored() as found:
        (tuned,) = evaluation.models(found.server_state, [0])
    assert trees.specs(tuned) == trees.specs(SHARED.init(0))


def test_exported_models_are_of_their_own_networks(run, tmp_path):
    run.export(tmp_path / "models")
    x = run.experiment.members.examples(0, "test").x
    with run.restored() as found:
        weights = run.experiment.process.global_weights(found.server_state)
        (own, *_) = run.experiment.evaluator.models(found.server_state, found.source, [0])
    for name, model, its in (("global", SHARED, weights), ("client_0", OWN, own)):
        loaded = tf.saved_model.load(str(tmp_path / "models" / name))
        assert_close(np.asarray(loaded(x)), np.asarray(model.apply(its, x)))


def test_another_global_network_is_another_run(run):
    experiment = run.experiment
    wider = models.build("mlp", (4, 4, 1), 3, hidden=(7,), mean=(0.5,))
    other = dataclasses.replace(experiment.algorithm, global_model=wider)
    changed = dataclasses.replace(experiment, algorithm=other)
    one, two = (it.identity["fingerprints"] for it in (experiment, changed))
    assert [key for key in one if one[key] != two[key]] == ["models", "evaluation"]

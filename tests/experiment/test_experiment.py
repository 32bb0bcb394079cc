"""Tests experiments: what they refuse, and what the experiments made of one share."""

import dataclasses

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.experiment.killed import with_validation
from tests.federation import (
    assert_close,
    local_sgd,
    random_examples,
    tiny_algorithm,
    tiny_experiment,
    tiny_model,
)
from tff_pfl import algorithms
from tff_pfl.arguments.kinds import KindError
from tff_pfl.clients import Participation, PowerOfChoice
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import Evaluation, sampled_clients
from tff_pfl.experiment import EarlyStop, NewClients
from tff_pfl.local import ClientContext
from tff_pfl.privacy import Accountant, with_distributed_privacy
from tff_pfl.templates.federation import Federation

TASK = dataclasses.replace(tiny_model().task, metrics={})
FINE_TUNED = Evaluation(fine_tune_epochs=3)
TRAINED = Evaluation(further_models=("locally_trained",))
BY_LOSS = Participation(selector=PowerOfChoice(candidates=5))
FIXED_CLUSTERS = tiny_algorithm("ifca", num_clients=4, fixed_clusters=(0, 1, 0, 1), min_share=0.0)


def of_model(**changes):
    """Returns FedAvg of the tiny model with changes."""
    model = dataclasses.replace(tiny_model(), **changes)
    return algorithms.make("fedavg", model, local_sgd())


def fedavg(**changes):
    return dataclasses.replace(tiny_algorithm("fedavg"), **changes)


NOISY = {"algorithm": tiny_algorithm("fedavg").with_declared_noise(0.1)}
DISTRIBUTED = with_distributed_privacy(fedavg(), noise_multiplier=0.1, clients_per_round=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "ditto"}, "^algorithm must be of type Algorithm, .*tff_pfl.make"),
        ({"algorithm": fedavg(made_of=None)}, "Register its function by tff_pfl.ALGORITHMS"),
        (
            {"dataset": tff.simulation.datasets.TestClientData({"a": {"x": [[1.0]], "y": [0]}})},
            "dataset must be of type FederatedDataset, .*arrays",
        ),
        ({"evaluation": 5}, "^evaluation must be of type Evaluation, got 5.$"),
        ({"early_stop": 3}, "early_stop must be of type EarlyStop or None, got 3"),
        ({"new_clients": NewClients(1, local=0.1)}, "new_clients: local must be of type LocalT"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_parts_of_other_kinds_are_refused(dataset, changes, message):
    with pytest.raises(KindError, match=message):
        dataclasses.replace(tiny_experiment(dataset), **changes)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"rounds": 0}, None, "^rounds must be a whole number of at least 1"),
        ({"clients_per_round": 6}, "clients_per_round", "cohort of 6 clients .* federation.* 5"),
        (
            {"algorithm": fedavg(made_for=Federation(clients_per_round=4))},
            "clients_per_round",
            "made for clients_per_round=4, .* here it is 2",
        ),
        ({"algorithm": of_model(num_classes=2)}, "model", "2 logits, .* 3 classes"),
        ({"accountant": Accountant(5, 2, 0.1)}, "privacy", "but the algorithm has no noise"),
        ({"accountant": Accountant(6, 2, 0.1), **NOISY}, "privacy", "(?s)for.*num_clients=6"),
        (
            {"algorithm": DISTRIBUTED, "participation": Participation(dropout=(0.2,))},
            "participation",
            r"dropout=\(0.2,\), but .* has to report",
        ),
        ({"new_clients": NewClients(5)}, "new_clients", "number=5, but the fed.*only 5 clients"),
        ({"evaluation": Evaluation(clients=6)}, "evaluation", "clients=6 .*, but .* has only 5"),
        ({"early_stop": EarlyStop(1)}, "early_stop", "no client that is evaluated has validation"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_impossible_experiments_are_refused(dataset, changes, field, message):
    with pytest.raises(ValueError, match=message) as raised:
        dataclasses.replace(tiny_experiment(dataset), **changes)
    assert getattr(raised.value, "field", None) == field


@pytest.mark.parametrize(
    ("metric", "changes", "message"),
    [
        ("global/loss", {"algorithm": tiny_algorithm("local")}, "'personalized/loss'"),
        (
            "personalized/accuracy",
            {"algorithm": of_model(task=TASK)},
            "has no accuracy. Choose 'personalized/l",
        ),
        (
            "personalized/loss",
            {
                "evaluation": Evaluation(clients=1),
                "seed": next(seed for seed in range(99) if sampled_clients(seed, 5, 1) == [4]),
            },
            "no client that is evaluated has validation examples",
        ),
        ("personalized/loss", {"evaluation": Evaluation(every=0)}, "only the last round is eval"),
    ],
)
def test_early_stops_need_their_metric(dataset, metric, changes, message):
    experiment = tiny_experiment(with_validation(dataset))
    assert dataclasses.replace(experiment, early_stop=EarlyStop(1, metric=metric))
    with pytest.raises(ValueError, match=message) as raised:
        dataclasses.replace(experiment, early_stop=EarlyStop(1, metric=metric), **changes)
    assert raised.value.field == "early_stop"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"algorithm": FIXED_CLUSTERS}, "new_clients", "but this algorithm has none"),
        ({"participation": BY_LOSS}, "participation", "has no global model. Choose another"),
        ({"evaluation": TRAINED}, "evaluation.further_models", "'locally_trained' is the global"),
        ({"evaluation": FINE_TUNED}, "new_clients", "fine_tune_epochs=3 .* fine-tune it twice"),
    ],
    ids=["new clients", "selector", "further model", "fine-tuning"],
)
def test_methods_without_a_global_model_refuse_what_needs_one(dataset, changes, field, message):
    fields = {"algorithm": "local", "new_clients": NewClients(1), **changes}
    experiment = tiny_experiment(dataset, **fields)
    with pytest.raises(ValueError, match=message) as raised:
        _ = experiment.process, experiment.new_clients_evaluation
    assert raised.value.field == field


def test_experiments_of_one_algorithm_share_its_processes(dataset):
    experiment = tiny_experiment(dataset, "local")
    longer = dataclasses.replace(experiment, rounds=9, evaluation=Evaluation(every=1))
    stated = tiny_experiment(dataset, experiment.algorithm, label="again")
    assert longer.process is stated.process is experiment.process
    for change in ({"seed": 4}, {"evaluation": FINE_TUNED}):
        assert dataclasses.replace(experiment, **change).process is not experiment.process


@pytest.mark.parametrize(
    ("with_tests", "fields", "message"),
    [
        ([1], {"evaluation": Evaluation(clients=1)}, r"no client of the sample \(clients=1\) of"),
        ([4], {"new_clients": NewClients(1)}, "no client that trains of 'custom' has test ex"),
        ([1], {"new_clients": NewClients(1)}, "no new client of 'custom' has test examples"),
        ([1], {"new_clients": NewClients(1, evaluated=False)}, None),
        ([1], {"evaluation": Evaluation(validation=True)}, "no client .* has validation examples"),
    ],
)
def test_evaluated_clients_must_have_examples(dataset, with_tests, fields, message):
    assert sampled_clients(3, 5, 1) == [0]
    rows = dataset.partition.test
    test = [rows[i] if i in with_tests else rows[i][:0] for i in range(5)]
    partition = dataclasses.replace(dataset.partition, test=test)
    data = FederatedDataset(dataset.x, dataset.y, 3, partition)
    experiment = tiny_experiment(data, "fedavg", **fields)
    if message is None:
        experiment.check_evaluated()
        return
    with pytest.raises(ValueError, match=message):
        experiment.check_evaluated()


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [None, 0.02])
def test_models_are_fine_tuned_at_the_rate_of_the_evaluation(dataset, rate):
    """The rate of local training in round 3 is 0.5 / 8."""
    algorithm = algorithms.make("fedavg", tiny_model(), local_sgd(learning_rate_decay=0.5))
    evaluation = Evaluation(fine_tune_epochs=2, fine_tune_learning_rate=rate)
    tuned = tiny_experiment(dataset, algorithm, evaluation=evaluation).process.algorithm
    weights, examples = tiny_model().init(0), random_examples(6)
    context = ClientContext(tf.constant(3), tf.constant(1), tf.constant([1, 2]))
    found = tuned.personalize.fine_tune(weights, examples, context)
    local = local_sgd(0.5 / 8 if rate is None else rate)
    expected = local.train(tiny_model(), weights, examples, context, epochs=2)
    assert_close(found, expected.weights)

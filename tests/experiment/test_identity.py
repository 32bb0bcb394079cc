"""Tests that everything a run's numbers depend on is noticed when a run is resumed."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import IMAGE_SHAPE, local_sgd, tiny_experiment
from tests.marks import slow
from tff_pfl import Metric, algorithms, from_keras
from tff_pfl.arguments.settings import facts
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import Experiment
from tff_pfl.experiment.changes import Change, changes_of, differences
from tff_pfl.models import tasks


@functools.cache
def model(scale=255.0, power=1, direction=-1, smoothing=0.0):
    """Returns a linear model of 3 classes, whose parts differ by these numbers."""

    def network():
        layers = tf.keras.layers
        return tf.keras.Sequential([layers.Flatten(input_shape=IMAGE_SHAPE), layers.Dense(3)])

    def error(y, z):
        return tf.abs(tf.cast(y, tf.float32) - z[:, 0]) ** power

    def smooth(y, z):
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
        return (1 - smoothing) * loss - smoothing * tf.reduce_mean(tf.nn.log_softmax(z), axis=1)

    task = tasks.classification().with_metrics({"error": Metric(values=error, direction=direction)})
    task = task.with_loss(smooth)

    def preprocess(x):
        return tf.cast(x, tf.float32) / scale

    return from_keras(network, input_shape=IMAGE_SHAPE, preprocess=preprocess, task=task)


def identity_of(dataset, made=None, local=None, fields=(), **method):
    """Returns the identity of a run of FedProx."""
    algorithm = algorithms.make("fedprox", made or model(), local or local_sgd(), **method)
    return tiny_experiment(dataset, algorithm, **dict(fields)).identity


EDITS = {
    "rate": ({"local": local_sgd(0.05)}, "rounds"),
    "option of the method": ({"mu": 10.0}, "rounds"),
    "loss": ({"made": model(smoothing=0.1)}, "rounds"),
    "preprocess": ({"made": model(scale=16.0)}, "rounds"),
    "aggregator": ({"aggregator": tff.aggregators.UnweightedMeanFactory()}, "rounds"),
    "metric": ({"made": model(power=2)}, "evaluation"),
    "direction": ({"made": model(direction=1)}, "quantities"),
    "seed": ({"fields": {"seed": 4}}, "rounds"),
    "split": ({"fields": {"evaluation": Evaluation(every=2, validation=True)}}, "evaluate"),
    "cohort": ({"fields": {"clients_per_round": 3}}, "clients_per_round"),
}


@pytest.fixture(scope="module")
def unchanged(dataset):
    return identity_of(dataset)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "edit", [edit if edit in ("rate", "metric") else slow(edit) for edit in EDITS]
)
def test_edit_of_a_script_is_noticed(dataset, unchanged, edit):
    changes, key = EDITS[edit]
    found = differences(unchanged, identity_of(dataset, **changes))
    assert any(key in change.key.split(".") for change in found)


@pytest.mark.thorough
def test_same_script_has_the_same_identity(dataset, unchanged):
    """A repeated call makes new Keras layers, whose automatic names have other numbers."""
    model.cache_clear()
    free = Evaluation(every=2, generalization="last", late_share=0.5)
    now = identity_of(dataset, fields={"evaluation": free, "rounds": 9, "checkpoint_every": 2})
    assert differences(unchanged, now) == []
    assert "code" not in now["participation"]["selector"]  # it is the library's


def test_ignored_keys_are_not_compared():
    before, now = {"a": {"b": 1, "c": [2]}, "ab": 3}, {"a": {"b": 4, "c": [5, 6]}}
    assert differences(before, now, ["a"]) == [Change("ab", 3, None)]
    assert differences(before, now, ["a.c", "ab"]) == [Change("a.b", 1, 4)]
    assert [str(it) for it in differences(before, now, ["a.b", "ab"])] == [
        "a.c.0: 2 then, 5 now",
        "a.c.1: None then, 6 now",
    ]


@pytest.mark.parametrize("section", ["", "privacy."])
def test_noise_may_differ_by_rounding(section):
    key = f"{section}noise_multiplier"
    assert not differences({key: 1.0}, {key: 1.0 + 1e-9})
    assert differences({key: 1.0}, {key: np.nextafter(1.001, 2)})


def test_fields_of_an_experiment_say_what_a_change_changes():
    said = {name: its.changes for name, (_, its) in facts(Experiment).items()}
    assert said == {name: changes_of(name) for name in said}

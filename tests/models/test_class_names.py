"""Tests that tasks and data mean the same classes by the same names."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tff_pfl
from tests.models.test_tasks import linear
from tff_pfl.models import TASKS
from tff_pfl.testing import tiny_local

LEVELS = ["low", "mid", "high"]


def data(labels):
    labels = list(labels) if isinstance(labels, tuple) else labels
    x = np.zeros([len(labels), 3], np.float32)
    number = len(getattr(labels, "categories", set(labels)))
    return tff_pfl.FederatedDataset.from_client_arrays([(x, labels, x, labels)], number, "survey")


def experiment(task, labels, outputs=3):
    fedavg = tff_pfl.make("fedavg", linear(task, outputs), tiny_local())
    return tff_pfl.Experiment(fedavg, data(labels), rounds=1)


def test_classes_of_a_task_are_those_of_the_data():
    task = TASKS["classification"](classes=LEVELS)
    experiment(task, pd.Categorical(LEVELS, LEVELS))
    experiment(task, [0, 1, 2])  # has no names
    experiment(TASKS["classification"](classes=3), tuple(LEVELS))
    with pytest.raises(ValueError, match="Class 0 is 'low' in task 'class.*', but 'high' in"):
        experiment(task, tuple(LEVELS))
    with pytest.raises(ValueError, match="Class 2 is 'high' in .* but missing in the data"):
        experiment(task, pd.Categorical(["low"], LEVELS[:2]))
    for same in (task.with_main_metric("accuracy"), task.of(lambda z: z), task.with_loss(abs)):
        assert same.classes == tuple(LEVELS)


def test_names_of_classes_may_have_any_characters():
    task = TASKS["classification"](classes=["very low", "(0, 1]"])
    assert {"recall_very_low", "f1__0__1_"} <= set(task.quantities)
    task.check_data(np.array([0, 1]), 2, "survey", ["very low", "(0, 1]"])


def test_class_one_of_a_binary_task(caplog):
    experiment(TASKS["binary"](), ("case", "control"), 1)
    (warned,) = caplog.messages
    assert "on 'survey' are those of its class 1, 'control'" in warned
    task = TASKS["binary"](classes=["control", "case"])
    experiment(task, pd.Categorical(["case", "control"], ["control", "case"]), 1)
    assert caplog.messages == [warned]
    with pytest.raises(ValueError, match="Class 0 is 'control' in task 'binary', but 'case' in"):
        experiment(task, ("case", "control"), 1)
    with pytest.raises(ValueError, match="has two classes, got a, b, c"):
        TASKS["binary"](classes="abc")


def test_class_weights_by_name():
    by_name = {"high": 4, "low": 1, "mid": 2}
    y, z = tf.constant([0, 1, 2]), tf.zeros([3, 3])
    task = TASKS["classification"](classes=LEVELS).with_class_weights(by_name)
    np.testing.assert_allclose(task.example_loss(y, z), np.log(3) * np.array([1, 2, 4]), rtol=1e-6)
    task = TASKS["binary"]().with_class_weights({"control": 1, "case": 5})
    assert task.classes == ("control", "case")
    loss = task.example_loss(tf.constant([0, 1]), tf.zeros([2, 1]))
    np.testing.assert_allclose(loss, np.log(2) * np.array([1, 5]), rtol=1e-6)
    with pytest.raises(ValueError, match="weights are of low, mid, but the task has .* mid, high"):
        TASKS["classification"](classes=LEVELS).with_class_weights({"low": 1, "mid": 1})

"""Tests that values of wrong classes are refused by name, with the right class."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model
from tff_pfl.algorithms import ALGORITHMS, fedavg, make
from tff_pfl.experiment import Run
from tff_pfl.local import LocalTraining
from tff_pfl.templates import compose

MISTAKES = {
    "optimizer must be of type Optimizer, got 0.01. tff.learning.optimizers.build_sgdm": (
        lambda: LocalTraining(0.01)
    ),
    "The server's optimizer must be of type Optimizer, got 'adam'": (
        lambda: make("fedavg", tiny_model(), local_sgd(), server_optimizer="adam")
    ),
    "The optimizer must not be that of build_adafactor.* Use another one, such as": (
        lambda: LocalTraining(tff.learning.optimizers.build_adafactor(0.1))
    ),
    "The model must be of type Model, got <keras.*from_keras makes one of a Keras model": (
        lambda: make("ditto", tf.keras.Sequential(), local_sgd())
    ),
    "The local training must be of type LocalTraining, got 0.1": (
        lambda: make("ditto", tiny_model(), 0.1)
    ),
    "The algorithm must be of type Algorithm, got <function fedavg.* A method makes one": (
        lambda: compose(fedavg, EXAMPLES_TYPE)
    ),
    "The experiment must be of type Experiment, got 'ditto'": lambda: Run("runs/x", "ditto"),
    'The name of the algorithm must be of type str, got <function.*register\\("my_name"\\)': (
        lambda: ALGORITHMS.register(fedavg)
    ),
}


def test_values_of_wrong_classes_are_refused():
    for message, mistake in MISTAKES.items():
        with pytest.raises(TypeError, match=message):
            mistake()

"""FedLC: FedAvg whose clients learn rare classes with a margin.

Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.
With the logits `z(x)` of its model and `n_c`, its number of examples of class `c`, a client
minimises the cross entropy of calibrated logits,

    -log( e^(z_y - m_y) / sum_c e^(z_c - m_c) ),    m_c = tau n_c^(-1/4)

A class that the client does not have has no finite margin: it leaves the sum, and its logit does
not move. With weights of examples, `n_c` is their sum. The reported loss is the calibrated one;
other metrics, evaluations and predictions use the logits. Everything else is as in FedAvg,
including the options.

The paper's sum is over the classes other than `y`. That loss has no lower bound, and trainings with
it collapsed in FL-bench, which sums over all classes, as here, and so does PFLlib. In PFLlib, `n_c`
counts the examples of all clients.

tau = 0: FedAvg.
"""

import dataclasses

import tensorflow as tf

from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.fedrod import shifted_model
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import Examples, LocalTraining, sum_over
from tff_pfl.models import Model, num_classes_of
from tff_pfl.templates import Algorithm

SMALLEST_COUNT = 1e-30  # of a class in its margin, because 0^(-1/4) is infinite


@ALGORITHMS.register("fedlc")
@extends(fedavg)
@takes(tau=at_least(0))
def fedlc(model: Model, local: LocalTraining, *, tau: float = 1.0, **options) -> Algorithm:
    """Makes FedLC.

    Args:
        model: The model.
        local: The local training.
        tau: The margin of a class with one example; 1 in FL-bench and PFLlib.
        **options: Options of `fedavg`.

    Raises:
        ValueError: The task has no class labels, or the model does not tell their number.
    """
    num_classes = num_classes_of(model, "fedlc")
    plain = fedavg(model, local, **options)
    (exchange,) = plain.exchanges

    def client_work(weights, state, examples, context):
        counts = class_counts(model, examples, num_classes)
        margins = tau * tf.maximum(counts, SMALLEST_COUNT) ** -0.25
        calibrated = fedavg(shifted_model(model, -margins), local, **options)
        return calibrated.exchanges[0].client_work(weights, state, examples, context)

    train = dataclasses.replace(exchange, client_work=client_work)
    return dataclasses.replace(plain, exchanges=[train])


def class_counts(model: Model, examples: Examples, num_classes: int) -> tf.Tensor:
    """Counts a client's examples of each class, by their weights, float32 `[num_classes]`."""

    def counts(batch):
        of_class = tf.one_hot(batch.labels, num_classes)
        return tf.reduce_sum(of_class * model.example_weight(batch)[:, tf.newaxis], axis=0)

    return sum_over(examples, counts)

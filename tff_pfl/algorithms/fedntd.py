"""FedNTD: FedAvg whose clients keep what the global model says about wrong classes.

Lee et al., "Preservation of the global knowledge by not-true distillation in federated learning",
NeurIPS 2022. A client minimises, with the logits `z(x)` of its model and `g(x)` of the model that
it received, which is constant,

    CE + beta l(x, y),   l(x, y) = tau^2 sum_{c != y} q_c log(q_c / p_c)

where `p = softmax(z(x) / tau)` and `q = softmax(g(x) / tau)` are over the classes other than `y`.
Everything else is as in FedAvg, including the options. The factor tau^2 is that of the authors'
code, whose received model has dropout and batch normalisation as in training; here it predicts as
in evaluation.

beta = 0, or two classes: FedAvg.
"""

import tensorflow as tf

from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import above, at_least, takes
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm


@ALGORITHMS.register("fedntd")
@extends(fedavg)
@takes(beta=at_least(0), temperature=above(0))
def fedntd(
    model: Model,
    local: LocalTraining,
    *,
    beta: float = 1.0,
    temperature: float = 1.0,
    **options,
) -> Algorithm:
    """Makes FedNTD.

    Args:
        model: The model.
        local: The local training.
        beta: The weight of the distillation.
        temperature: `tau`.
        **options: Options of `fedavg`.

    Raises:
        ValueError: The task has no class labels.
    """
    model.check_class_logits("fedntd")

    def objective(received):
        return {"term": distillation(model, received, beta, temperature)}

    return fedavg(model, local, objective, **options)


def distillation(model: Model, received: Weights, beta: float, temperature: float):
    """Returns the term `beta l(x, y)` of `LocalTraining.train`.

    Args:
        model: A model with a logit for each class.
        received: The weights of `g`.
        beta: 0 or more.
        temperature: `tau`, above 0.
    """

    def term(forward, batch):
        logits = model.apply(received, batch.x, training=False, seed=batch.seed)
        log_p, log_q = (
            _log_softmax_of_others(it / temperature, batch.labels)
            for it in (forward.outputs, logits)
        )
        divergence = tf.reduce_sum(tf.exp(log_q) * (log_q - log_p), axis=-1)
        return beta * temperature**2 * divergence

    return term


def _log_softmax_of_others(logits, labels):
    """Returns the logarithm of the softmax over classes other than the labels.

    The value for the label is finite, because 0 times infinity is NaN, and its `exp` is 0.
    """
    is_label = tf.one_hot(labels, logits.shape[-1], on_value=True, off_value=False)
    lowest = tf.cast(logits.dtype.min / 2, logits.dtype)
    return tf.nn.log_softmax(tf.where(is_label, lowest, logits))

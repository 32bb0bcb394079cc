"""FD, federated distillation: clients train towards the mean outputs of the others, by class.

Jeong et al., "Communication-efficient on-device machine learning: Federated distillation and
augmentation under non-IID private data", 2018. The augmentation is not part of this module.

Clients share the means of their outputs by class, and no weights. With `p_i(x)`, the softmax of the
outputs of a client's own model `w_i`, a round is

    down    for each class y, s_y and m_y
    client  q_iy = (s_y - p_iy) / (m_y - 1)  if s_y contains p_iy, the client's last upload;
                   s_y / m_y                 otherwise
            w_i <- LocalTraining(w_i), with the loss
                       CE(p_i(x), y) + gamma CE(p_i(x), q_iy)
            p_iy = mean p_i(x) of its examples of class y, in all steps
    up      p_iy, and whether it has examples of class y
    server  s_y <- sum_i p_iy,  m_y <- the number of terms,  for the classes of the cohort

Outputs of a class without a teacher `q_iy` are not pulled; in the first round, no class has one. In
the paper all clients take part in every round and have all classes. There is no global model.

Outputs are those of the pass that gives a step's gradient, as in PFLlib; the paper computes them
after the step. PFLlib shares logits without softmax, and does not leave out a client's own.

gamma = 0, or a single client: Local.
"""

import collections
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import Counted, CountedFactory
from tff_pfl.algorithms.fedproto import sums_by_class
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights, num_classes_of
from tff_pfl.models.statistics import only_statistics
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization


class ClassOutputs(NamedTuple):
    """Sums by class, of `c` classes.

    Attributes:
        sums: float32 `[c, c]`, a sum of outputs in each row; 0 without any.
        counts: float32 `[c]`, the number of terms of each sum.
    """

    sums: tf.Tensor
    counts: tf.Tensor


class Ensemble(NamedTuple):
    """Server state.

    Attributes:
        outputs: The sums of clients' mean outputs, `s_y`, and the numbers of clients, `m_y`.
        round_num: int32 `[c]`, the round of each sum; -1 without any.
    """

    outputs: ClassOutputs
    round_num: tf.Tensor


class OwnOutputs(NamedTuple):
    """Client state.

    Attributes:
        model: The weights `W` of the client's own model.
        optimizer: The client's optimizer state; `()` unless it persists.
        outputs: The client's last upload: its mean outputs, `p_iy`, each of count 1.
        round_num: int32 scalar, the round of that upload; -1 before the first.
    """

    model: Weights
    optimizer: tuple
    outputs: ClassOutputs
    round_num: tf.Tensor


class Steps(NamedTuple):
    """The carry of training.

    Attributes:
        outputs: The sums of the outputs in all steps so far.
        statistics: The moving statistics after the last step, if the model has any.
    """

    outputs: ClassOutputs
    statistics: dict


@ALGORITHMS.register("fd")
@takes(gamma=at_least(0))
def fd(model: Model, local: LocalTraining, *, gamma: float = 1.0) -> Algorithm:
    """Makes FD.

    Args:
        model: The model.
        local: The local training.
        gamma: The pull of outputs towards the mean outputs of other clients; 1 in PFLlib.

    Raises:
        ValueError: The task has no class labels, or the model does not tell their number.
    """
    num_classes = num_classes_of(model, "fd")

    def nothing():
        return ClassOutputs(tf.zeros([num_classes, num_classes]), tf.zeros([num_classes]))

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnOutputs(weights, local.optimizer_state(weights), nothing(), tf.constant(-1))

    def client_work(ensemble, state, examples, context):
        teacher = mean_of_others(ensemble, state)

        def gradient(weights, batch, carry):
            seen = []  # The pass that gives the gradient also gives the outputs.

            def distillation(forward, batch):
                seen.append(forward.outputs)
                return gamma * cross_entropy(forward.outputs, tf.gather(teacher, batch.labels))

            direction, totals, assigned = model.training_gradient(weights, batch, term=distillation)
            weight = model.example_weight(batch)
            outputs = sums_by_class(tf.nn.softmax(seen[0]), batch.labels, weight, num_classes)
            outputs = trees.add(carry.outputs, ClassOutputs(*outputs))
            return direction, totals, Steps(outputs, only_statistics(assigned))

        trained = local.train(
            model,
            state.model,
            examples,
            context,
            optimizer_state=state.optimizer,
            gradient=gradient,
            carry=Steps(nothing(), only_statistics(state.model)),
            assign=lambda weights, batch, carry: carry.statistics,
        )
        means = means_by_class(trained.carry.outputs)
        return ClientOutput(
            state=OwnOutputs(trained.weights, trained.optimizer_state, means, context.round_num),
            upload=Counted(means),
            metrics=trained.totals,
        )

    def finalize(ensemble, mean, round_num):
        outputs = trees.scale(mean["value"], mean["number"])
        return with_outputs(ensemble, ClassOutputs(*outputs), round_num), collections.OrderedDict()

    return Algorithm(
        server_init=lambda seed: Ensemble(nothing(), tf.fill([num_classes], -1)),
        client_init=client_init,
        exchanges=[
            Exchange(
                client_work=client_work,
                distribute=lambda ensemble: ensemble,
                aggregator=CountedFactory(),
                finalize=finalize,
            )
        ],
        personalize=Personalization(client_work=lambda message, state, examples, ctx: state.model),
    )


def cross_entropy(logits: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
    """Computes the cross entropy of each row with the distribution `q`; 0 where `q` is 0."""
    return -tf.reduce_sum(q * tf.nn.log_softmax(logits), axis=-1)


def means_by_class(outputs: ClassOutputs) -> ClassOutputs:
    """Returns sums of one term, the mean, for each class that has a term."""
    means = tf.math.divide_no_nan(outputs.sums, outputs.counts[:, tf.newaxis])
    return ClassOutputs(means, tf.sign(outputs.counts))


def mean_of_others(ensemble: Ensemble, own: OwnOutputs) -> tf.Tensor:
    """Computes a client's teacher `q_iy` of each class, float32 `[c, c]`; 0 without any."""
    is_latest = tf.cast(tf.equal(own.round_num, ensemble.round_num), tf.float32)
    own_outputs = trees.scale_rows(own.outputs, is_latest)
    return means_by_class(trees.subtract(ensemble.outputs, own_outputs)).sums


def with_outputs(ensemble: Ensemble, outputs: ClassOutputs, round_num: tf.Tensor) -> Ensemble:
    """Replaces the sums of the classes that the cohort has.

    Args:
        ensemble: The state.
        outputs: The sums of the cohort.
        round_num: int32 scalar.
    """
    # Means times their number may miss a whole number, of which a client later subtracts 1.
    outputs = outputs._replace(counts=tf.round(outputs.counts))
    is_new = outputs.counts > 0.0
    sums = tf.where(is_new[:, tf.newaxis], outputs.sums, ensemble.outputs.sums)
    counts = tf.where(is_new, outputs.counts, ensemble.outputs.counts)
    return Ensemble(ClassOutputs(sums, counts), tf.where(is_new, round_num, ensemble.round_num))

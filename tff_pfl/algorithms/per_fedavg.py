"""Per-FedAvg: clients train a model that is good after one step on their own examples.

Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020.

FedAvg with another objective; a client minimises

    F_i(w) = f_i(w - a grad f_i(w)),      grad F_i(w) = (I - a H_i(w)) grad f_i(w - a grad f_i(w))

with `H_i` the Hessian of `f_i`. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform)
and the rate `beta` of the local training:

    down    w
    client  w_i = w;  for independent mini-batches b, b', b'', in all epochs:
                v   = grad loss(w_i - a grad loss(w_i; b); b')
                w_i <- w_i - beta v                                            "first_order"
                Hv  = (grad loss(w_i + delta v; b'') - grad loss(w_i - delta v; b'')) / (2 delta)
                w_i <- w_i - beta (v - a Hv)                                   "hessian_free"
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

The steps at the rate beta are steps of the local training's optimizer. The mini-batches of a step
are parts of one batch of the local training, as in PGFed's code: every second row, or every third.
A batch size `B` of the paper is therefore 2 `B`, or 3 `B`, here. A part without examples, as of a
client with one example, is replaced by the first part. The reported loss is measured on `b'`,
before the step of `w_i`, for the model adapted on `b`.

The personal model of every client, whether it took part or not, is the current global model after
one step of SGD at the rate a on one batch of the client's examples. The result is not kept. This
step is the `fine_tune` of the algorithm's `Personalization`. Other fine-tuning before evaluations
(`tff_pfl.fine_tuned`, `config.evaluation.fine_tune_epochs`) replaces it.

a = 0: FedAvg, where each step uses only the second part of the batch. adaptation_steps = 0: the
personal model is the global one.
"""

import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, at_least, takes, whole
from tff_pfl.local import Batch, LocalTraining, gather_rows, trees
from tff_pfl.models import Model
from tff_pfl.templates import Algorithm

# The number of mini-batches in a step.
VARIANTS = {"first_order": 2, "hessian_free": 3}


@ALGORITHMS.register("per_fedavg")
@extends(fedavg, without=["personalized"])
@idle_where("delta", variant="first_order")
@takes(
    inner_learning_rate=at_least(0),
    delta=above(0),
    adaptation_learning_rate=at_least(0),
    adaptation_steps=whole(0),
)
def per_fedavg(
    model: Model,
    local: LocalTraining,
    *,
    variant: str = "first_order",
    inner_learning_rate: float = 0.005,
    delta: float = 0.001,
    adaptation_learning_rate: float | None = None,
    adaptation_steps: int = 1,
    **options,
) -> Algorithm:
    """Builds the Per-FedAvg algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training, whose batches are split; its learning rate is beta.
        variant: "first_order", which ignores the Hessian, or "hessian_free", which computes its
            product with a vector from differences of gradients.
        inner_learning_rate: The learning rate of the inner step, `a`, in all rounds; PGFed tunes a
            and beta in 0.0001 to 0.1, and has 0.005 for both in its example.
        delta: The step of the differences.
        adaptation_learning_rate: The learning rate of the steps that make a personal model; default
            a, in PGFed's code beta.
        adaptation_steps: The number of these steps.
        **options: Options of `fedavg`.
    """
    check_names("variant", [variant], VARIANTS)
    adaptation = LocalTraining(
        tff.learning.optimizers.build_sgdm(
            inner_learning_rate if adaptation_learning_rate is None else adaptation_learning_rate
        ),
        batch_size=local.batch_size,
    )
    number = VARIANTS[variant]

    def meta_gradient(weights, batch, carry):
        first, second, *others = (_part(batch, index, number) for index in range(number))
        inner, _ = model.gradient(weights, first)
        adapted = trees.subtract(weights, trees.scale(inner, inner_learning_rate))
        outer, totals = model.gradient(adapted, second)
        if variant == "hessian_free":
            (third,), difference = others, trees.scale(outer, delta)
            ahead, _ = model.gradient(trees.add(weights, difference), third)
            behind, _ = model.gradient(trees.subtract(weights, difference), third)
            product = trees.scale(trees.subtract(ahead, behind), 1 / (2 * delta))
            outer = trees.subtract(outer, trees.scale(product, inner_learning_rate))
        return outer, totals, carry

    def adapt(weights, examples, context):
        return adaptation.train(model, weights, examples, context, steps=adaptation_steps).weights

    algorithm = fedavg(model, local, lambda received: {"gradient": meta_gradient}, **options)
    return dataclasses.replace(
        algorithm, personalize=dataclasses.replace(algorithm.personalize, fine_tune=adapt)
    )


def _part(batch: Batch, index: int, number: int) -> Batch:
    """Returns every `number`-th row of a batch, from row `index` on.

    Without an example among them, it returns the rows from row 0 on. Padding comes last in a batch.
    """
    size = batch.weight.shape[0]
    start = tf.where(batch.weight[index] > 0, index, 0) if index < size else 0
    rows = start + tf.range(0, size, number)
    inside = tf.minimum(rows, size - 1)
    return Batch(
        x=gather_rows(batch.x, inside),
        y=gather_rows(batch.y, inside),
        weight=tf.where(rows < size, tf.gather(batch.weight, inside), 0.0),
        seed=tf.random.experimental.stateless_fold_in(batch.seed, index),
    )

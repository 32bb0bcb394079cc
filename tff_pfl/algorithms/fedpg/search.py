"""S-FedPG: FedPG with a search for the step along the common direction.

A third exchange, "search", comes between FedPG's two. The server sends `d` and a ladder of steps
(see `step_ladder`), and each client returns its loss at each step. The server takes the largest
step at which every online loss and the fairness descend enough. Clients keep `d` for the last
exchange, which does not send it again.
"""

import collections
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedpg import step_ladder
from tff_pfl.algorithms.fedpg.round import fedpg
from tff_pfl.algorithms.fedpg.server import FedPGServer, moved, stepped
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import between, takes, whole
from tff_pfl.local import LocalTraining, evaluate, trees
from tff_pfl.models import Model
from tff_pfl.numerics.host import on_host
from tff_pfl.templates import Algorithm, ClientOutput, Exchange


class Search(NamedTuple):
    """The data from which the step is chosen, with one row for each of `Plan.client_ids`.

    Attributes:
        ladder: The `step_ladder.Ladder`.
        losses: float32 `[?]`, the losses at `w`.
        slopes: float64 `[?]`, `g_i . d`.
        live: bool `[?]`.
        fairness_gradient: float64 `[?]`, `h`.
    """

    ladder: step_ladder.Ladder
    losses: tf.Tensor
    slopes: tf.Tensor
    live: tf.Tensor
    fairness_gradient: tf.Tensor


class Trials(NamedTuple):
    """A client's upload in the search for a step.

    Attributes:
        client_id: int32 scalar.
        losses: float32 `[max_trials]`, the losses at `w + step d` for the admissible steps.
    """

    client_id: tf.Tensor
    losses: tf.Tensor


@ALGORITHMS.register("s_fedpg")
@idle_where("local", gradient="full")
@extends(fedpg)
@takes(search_doublings=whole(0), sufficient_decrease=between(0, 1), max_trials=whole(1))
def s_fedpg(
    model: Model,
    local: LocalTraining,
    *,
    gradient: str = "full",
    search_doublings: int = 1,
    sufficient_decrease: float = 1e-4,
    max_trials: int = 16,
    **options,
) -> Algorithm:
    """Makes S-FedPG.

    Args:
        model: The model, of weights `W`, `n` numbers.
        local: See `fedpg`.
        gradient: See `fedpg`.
        search_doublings: The search tries steps from `2^s eta` down to `eta / (2^s sigma)`, where
            this is `s`.
        sufficient_decrease: The share of the slope by which a loss has to descend.
        max_trials: The largest number of steps that a round tries.
        **options: Options of `fedpg`.
    """
    model.check_no_batch_normalization("s_fedpg")
    base = fedpg(model, local, gradient=gradient, **options)
    train, personalize = base.exchanges
    server = FedPGServer(local, **options)

    def with_search(state, search):
        return state._replace(plan=state.plan._replace(search=search))

    def find_ladder(state, stack, round_num):
        planned, found, metrics = server.find_direction(state, stack, round_num)
        ladder = step_ladder.make_ladder(
            local.learning_rate(round_num),
            found.descent.sigma,
            doublings=search_doublings,
            max_trials=max_trials,
        )
        search = Search(
            ladder, found.losses, found.descent.slopes, found.live, found.fairness_gradient
        )
        return with_search(planned, search), metrics

    def send_losses(message, state, examples, context):
        direction, ladder = message
        weights = context.carry.weights

        def trial(index, losses):
            tried = moved(weights, direction, ladder.steps[index])
            loss = evaluate(model, tried, examples)["loss"].mean
            loss = tf.where(tf.math.is_finite(loss), loss, step_ladder.FAILED)
            return index + 1, losses + loss * tf.one_hot(index, max_trials)

        _, losses = tf.while_loop(
            lambda index, _: index < ladder.count, trial, (tf.constant(0), tf.zeros([max_trials]))
        )
        return ClientOutput(
            state=state,
            upload=Trials(context.client_id, losses),
            carry=(context.carry, direction),
        )

    def make_personal(message, state, examples, context):
        carry, direction = context.carry
        message = message._replace(shared=(*message.shared, direction))
        context = context._replace(carry=carry)
        return personalize.client_work(message, state, examples, context)

    return dataclasses.replace(
        base,
        server_init=lambda seed: with_search(base.server_init(seed), _no_search(max_trials)),
        exchanges=[
            dataclasses.replace(train, finalize=find_ladder),
            Exchange(
                distribute=lambda state: (state.plan.direction, state.plan.search.ladder),
                client_work=send_losses,
                aggregator=StackFactory(),
                finalize=lambda state, stack, round_num: take_step(
                    state, stack, round_num, sufficient_decrease
                ),
                name="search",
            ),
            dataclasses.replace(
                personalize,
                distribute=lambda state: state.plan[:2],  # the round and the step
                client_work=make_personal,
            ),
        ],
    )


def _no_search(max_trials: int) -> Search:
    """Returns the search of a server that has not searched yet."""
    return Search(
        step_ladder.Ladder(tf.zeros([max_trials]), tf.constant(1)),
        losses=trees.no_rows([], tf.float32),
        slopes=trees.no_rows([], tf.float64),
        live=trees.no_rows([], tf.bool),
        fairness_gradient=trees.no_rows([], tf.float64),
    )


def take_step(server, stack, round_num, sufficient_decrease: float):
    """Finalizes the search: chooses the step and moves the weights.

    Args:
        server: The state, with this round's plan.
        stack: A `Stack` of `Trials`.
        round_num: int32 scalar. The step is 0 if the plan is of an earlier round, because this
            round's plan was rejected.
        sufficient_decrease: `beta`.
    """
    plan = server.plan
    search: Search = plan.search
    with on_host():
        is_of_round = tf.equal(plan.round_num, round_num)
        trials = stack.accepted(stack.value.client_id)
        is_theirs = tf.equal(plan.client_ids[:, tf.newaxis], trials.client_id)
        search = search._replace(live=search.live & tf.reduce_any(is_theirs, axis=1))
        index, accepted = step_ladder.choose_step(
            *search,
            tf.matmul(tf.cast(is_theirs, tf.float32), trials.losses),
            sufficient_decrease=sufficient_decrease,
        )
        step = tf.where(is_of_round, search.ladder.steps[index], 0.0)
    metrics = collections.OrderedDict(
        step=step,
        num_steps=search.ladder.count,
        num_halvings=tf.cast(index, tf.int32),
        accepted=tf.cast(accepted & is_of_round, tf.int32),
    )
    return stepped(server, step), metrics

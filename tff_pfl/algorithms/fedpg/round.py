"""FedPG and S-FedPG: a common descent direction for all, a personal one that hurts nobody.

FedPG is an anonymous submission. A round, with gradients `g_i` of the clients' mean losses `L_i`
and the rate `eta`:

    down    w                                                                    (exchange "train")
    client  g_i = grad L_i(w), exact, over all examples; L_i
    up      g_i, L_i
    server  drop gradients that are 0, whose clients leave the memory; scale the others to their
            mean norm mu
            Q = [ g_i online,  g_j of clients absent for at most tau rounds,  fairness gradient ]
            d = -sigma Q lambda*,  the min-norm point of the hull of Q, as long as the mean of the
            online gradients;  tau = clients whose last gradient was not 0 / clients online
            d = 0 and sigma = 0 if that point is not longer than 1e-6 mu
            gamma_i: how far client i may turn from d to its own -g_i without hurting another
            w <- w + eta d
    down    d, eta, gamma_i                                                (exchange "personalize")
    client  theta_i = w + eta d_i,   d_i = d + gamma_i (-g_i - d)            (w before the round)

The personal model is `theta_i` of the last round the client took part in; the current `w` for a
client that never did. To have all of them at the present `w` ("rebuild"), let all clients take part
in a round that is not kept: `process.next(state, everyone).clients` are their states then, and
`state` stays. S-FedPG (`step_search`) has an exchange "search" between the two: the server
sends `d` and a ladder of steps, each client returns its loss at each, and the server takes the
largest step at which every online loss and the fairness descend enough.

`w` goes to all clients of a round. Those of the round before could compute it from what they have,
so that the paper's protocol sends it to the others alone, and `bytes_down_per_client` are up to
twice what is needed.

Left open by the paper, with what its authors' code does as the default: `gradient`, `fair_from`,
`rescale_with`, `gamma_mode`, `protect_absent`. Not of the paper: the bound 1e-6, below which
descent cannot be told from rounding; `memory_size` bounds what the server keeps; and
`outlier_ratio` keeps single gradients of absurd length from setting `mu`, and with it the length of
the step.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedpg import step_ladder
from tff_pfl.algorithms.fedpg.server import ZERO_GRADIENT, FedPGServer, Trials, Upload, moved
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where, trains_where
from tff_pfl.local import ExactGradient, LocalTraining, evaluate, exact_gradient, trees
from tff_pfl.models import Model, Weights
from tff_pfl.names import check_names
from tff_pfl.ranges import at_least_or_infinite, between, takes, whole
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization, last_own_model

GRADIENTS = ("full", "pseudo")


class OwnModel(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, the personal model of the client's last participation.
        participations: int32 scalar, rounds the client took part in.
        gradients: int32 scalar, how many of its gradients were not 0, since the last that was.
    """

    model: Weights
    participations: tf.Tensor
    gradients: tf.Tensor


class Carry(NamedTuple):
    """What a client keeps between the exchanges of a round.

    Attributes:
        weights: `W`, those it received.
        gradient: float32 `[n]`, its own.
        direction: float32 `[n]`, `d`, if a search has sent it already; else `()`.
    """

    weights: Weights
    gradient: tf.Tensor
    direction: tf.Tensor | tuple = ()


@ALGORITHMS.register("fedpg")
@trains_where(gradient="pseudo")
@idle_where("memory_size", absent_memory=False)
@idle_where("gamma_mode", "gamma", "protect_absent", personalize=False)
@idle_where("gamma", gamma_mode="auto")
@idle_where("search_doublings", "sufficient_decrease", "max_trials", step_search=False)
@takes(
    memory_size=whole(1),
    gamma=between(0, 1),
    outlier_ratio=at_least_or_infinite(1),
    search_doublings=whole(0),
    sufficient_decrease=between(0, 1),
    max_trials=whole(1),
)
def fedpg(
    model: Model,
    local: LocalTraining,
    *,
    gradient: str = "full",
    direction: str = "mgda",
    fairness: bool = True,
    absent_memory: bool = True,
    memory_size: int = 100,
    personalize: bool = True,
    gamma_mode: str = "auto",
    gamma: float = 0.0,
    protect_absent: bool = False,
    fair_from: str = "scaled",
    rescale_with: str = "scaled",
    outlier_ratio: float | None = 100.0,
    step_search: bool = False,
    search_doublings: int = 1,
    sufficient_decrease: float = 1e-4,
    max_trials: int = 16,
) -> Algorithm:
    """FedPG, S-FedPG or one of their variants.

    The paper's ablations are M1: `direction="mean"`, M2: `fairness=False`, M3:
    `personalize=False`, M4: `absent_memory=False`.

    Args:
        model: The model, of weights `W`, `n` numbers.
        local: Its learning rate and decay are the server's step `eta`; the rest of it trains where
            `gradient` is "pseudo".
        gradient: "full", the exact gradient; or "pseudo", `(w - LocalTraining(w)) / eta`, which is
            0 in a round of the rate 0.
        direction: "mgda", the min-norm direction; or "mean", that of the raw gradients, without
            memory and fairness.
        fairness: Whether fairness is one of the objectives.
        absent_memory: Whether the last gradients of absent clients are among the objectives.
        memory_size: How many clients' gradients the server keeps, the newest; it takes
            `4 n memory_size` bytes. The paper keeps those of all clients ever seen: of a federation
            of more than the default of 100, absent clients are protected as in the paper by as many
            as there are clients.
        personalize: Whether clients leave the common direction; if not, `gamma_i = 0`.
        gamma_mode: "auto", the largest `gamma_i` that hurts no other online client; "constant",
            `gamma`; or "at_least", the larger of the two.
        gamma: In [0, 1].
        protect_absent: Whether `gamma_i` must not hurt absent clients either.
        fair_from: "scaled" or "raw" gradients, which the fairness gradient is made of.
        rescale_with: "scaled" or "raw" gradients, whose mean gives `d` its length.
        outlier_ratio: Online gradients longer than this many times their median do not count in
            `mu`; `None`: all do, as in the paper.
        step_search: Whether the step is searched for: S-FedPG.
        search_doublings: `s` of the search, which tries `2^s eta` to `eta / (2^s sigma)`.
        sufficient_decrease: `beta`, the share of the slope by which a loss has to descend.
        max_trials: The most steps that a round tries.
    """
    check_names("gradient", [gradient], GRADIENTS)
    server = FedPGServer(
        local=local,
        direction=direction,
        fairness=fairness,
        absent_memory=absent_memory,
        memory_size=memory_size,
        personalize=personalize,
        gamma_mode=gamma_mode,
        gamma=gamma,
        protect_absent=protect_absent,
        fair_from=fair_from,
        rescale_with=rescale_with,
        outlier_ratio=outlier_ratio,
        step_search=step_search,
        search_doublings=search_doublings,
        sufficient_decrease=sufficient_decrease,
        max_trials=max_trials,
    )

    def client_init(client_id, seed):
        return OwnModel(model.init(seed), tf.constant(0), tf.constant(0))

    def gradient_and_totals(weights, examples, context):
        if gradient == "full":
            return exact_gradient(model, weights, examples)
        trained = local.train(model, weights, examples, context)
        change = trees.subtract(weights, trained.weights)
        rate = local.learning_rate(context.round_num)
        pseudo = trees.scale(change, tf.math.divide_no_nan(1.0, rate))
        return ExactGradient(pseudo, evaluate(model, weights, examples))

    def send_gradient(weights, state, examples, context):
        found = gradient_and_totals(weights, examples, context)
        vector = trees.to_vector(found.gradient)
        is_zero = tf.norm(vector) <= ZERO_GRADIENT
        upload = Upload(
            client_id=context.client_id,
            is_new=tf.equal(state.gradients, 0),
            gradient=vector,
            loss=found.loss,
        )
        return ClientOutput(
            state=state._replace(gradients=tf.where(is_zero, 0, state.gradients + 1)),
            upload=upload,
            metrics=found.totals,
            carry=Carry(weights, vector),
        )

    def send_losses(message, state, examples, context):
        direction, ladder = message

        def trial(index, losses):
            weights = moved(context.carry.weights, direction, ladder.steps[index])
            loss = evaluate(model, weights, examples)["loss"].mean
            loss = tf.where(tf.math.is_finite(loss), loss, step_ladder.FAILED)
            return index + 1, losses + loss * tf.one_hot(index, max_trials)

        _, losses = tf.while_loop(
            lambda index, _: index < ladder.count, trial, (tf.constant(0), tf.zeros([max_trials]))
        )
        return ClientOutput(
            state=state,
            upload=Trials(context.client_id, losses),
            carry=context.carry._replace(direction=direction),
        )

    def make_personal(message, state, examples, context):
        del examples
        (round_num, step, direction), gamma = message
        weights, own, carried = context.carry
        direction = carried if step_search else direction
        personal = direction + gamma * (-own - direction)
        after = state._replace(
            model=moved(weights, personal, step), participations=state.participations + 1
        )
        # Where this round's plan came to nothing, the message has that of an earlier one.
        return ClientOutput(trees.select(tf.equal(round_num, context.round_num), after, state))

    def send_plan(state):
        plan = state.plan
        return plan.round_num, plan.step, () if step_search else plan.direction

    search = Exchange(
        distribute=lambda state: (state.plan.direction, state.plan.search.ladder),
        client_work=send_losses,
        aggregator=StackFactory(),
        finalize=server.take_step,
        name="search",
    )
    return Algorithm(
        server_init=lambda seed: server.init(model.init(seed)),
        client_init=client_init,
        exchanges=[
            Exchange(
                distribute=lambda state: state.weights,
                client_work=send_gradient,
                aggregator=StackFactory(),
                finalize=server.find_direction,
            ),
            *([search] if step_search else []),
            Exchange(
                distribute=send_plan,
                select=server.own_gamma,
                client_work=make_personal,
                name="personalize",
            ),
        ],
        personalize=Personalization(
            distribute=lambda state: state.weights, client_work=last_own_model
        ),
        global_weights=lambda state: state.weights,
    )


s_fedpg = ALGORITHMS.variant("s_fedpg", fedpg, step_search=True)

"""The server of FedPG and S-FedPG: from the gradients of a cohort to a direction and a step."""

import collections
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedpg import common_descent, gradient_memory, step_ladder
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Weights
from tff_pfl.names import check_names

DIRECTIONS = ("mgda", "mean")
GAMMA_MODES = ("auto", "constant", "at_least")
SCALES = ("scaled", "raw")
ZERO_GRADIENT = 1e-6  # norms up to it are those of a client that is done


class Upload(NamedTuple):
    """What the server learns of a client.

    Attributes:
        client_id: int32 scalar.
        is_new: bool scalar, whether the client's last gradient was 0, or it has sent none before.
        gradient: float32 `[n]`.
        loss: float32 scalar, at the weights the client received.
    """

    client_id: tf.Tensor
    is_new: tf.Tensor
    gradient: tf.Tensor
    loss: tf.Tensor


class Trials(NamedTuple):
    """What the server learns of a client in the search for a step.

    Attributes:
        client_id: int32 scalar.
        losses: float32 `[max_trials]`, at `w + step d` for the admissible steps.
    """

    client_id: tf.Tensor
    losses: tf.Tensor


class Search(NamedTuple):
    """What the choice of the step needs to know; rows are those of `Plan.client_ids`.

    Attributes:
        ladder: The `step_ladder.Ladder`.
        losses: float32 `[?]`, at `w`.
        slopes: float64 `[?]`, `g_i . d`.
        live: bool `[?]`.
        fairness_gradient: float64 `[?]`, `h`.
    """

    ladder: step_ladder.Ladder
    losses: tf.Tensor
    slopes: tf.Tensor
    live: tf.Tensor
    fairness_gradient: tf.Tensor


class Plan(NamedTuple):
    """What the server decided on in a round.

    Attributes:
        round_num: int32 scalar, the round; -1 before the first.
        step: float32 scalar, `eta`.
        direction: float32 `[n]`, `d`.
        client_ids: int32 `[?]`, the cohort, in ascending order.
        gamma: float32 `[?]`, theirs.
        search: A `Search`, or `()` without a step search.
    """

    round_num: tf.Tensor
    step: tf.Tensor
    direction: tf.Tensor
    client_ids: tf.Tensor
    gamma: tf.Tensor
    search: Search | tuple


class Server(NamedTuple):
    """Server state.

    Attributes:
        weights: `W`.
        clients_seen: int32 scalar, `M`, the clients whose last gradient was not 0: so many would
            a memory without bounds have.
        memory: The `GradientMemory`, or `()`.
        plan: The `Plan` of the last round.
    """

    weights: Weights
    clients_seen: tf.Tensor
    memory: gradient_memory.GradientMemory | tuple
    plan: Plan


@dataclasses.dataclass(frozen=True)
class FedPGServer:
    """The server's part as pure functions; see `tff_pfl.algorithms.fedpg` for the options."""

    local: LocalTraining
    direction: str
    fairness: bool
    absent_memory: bool
    memory_size: int
    personalize: bool
    gamma_mode: str
    gamma: float
    protect_absent: bool
    fair_from: str
    rescale_with: str
    outlier_ratio: float | None
    step_search: bool
    search_doublings: int
    sufficient_decrease: float
    max_trials: int

    def __post_init__(self):
        check_names("direction", [self.direction], DIRECTIONS)
        check_names("gamma_mode", [self.gamma_mode], GAMMA_MODES)
        check_names("fair_from", [self.fair_from], SCALES)
        check_names("rescale_with", [self.rescale_with], SCALES)

    @property
    def _uses_memory(self) -> bool:
        return self.absent_memory and self.direction == "mgda"

    def init(self, weights) -> Server:
        """The state before the first round."""
        (num_weights,) = trees.to_vector(weights).shape
        search = Search(
            step_ladder.Ladder(tf.zeros([self.max_trials]), tf.constant(1)),
            losses=trees.no_rows([], tf.float32),
            slopes=trees.no_rows([], tf.float64),
            live=trees.no_rows([], tf.bool),
            fairness_gradient=trees.no_rows([], tf.float64),
        )
        plan = Plan(
            round_num=tf.constant(-1),
            step=tf.constant(0.0),
            direction=tf.zeros([num_weights]),
            client_ids=trees.no_rows([], tf.int32),
            gamma=trees.no_rows([], tf.float32),
            search=search if self.step_search else (),
        )
        memory = gradient_memory.empty_memory(self.memory_size, num_weights)
        return Server(weights, tf.constant(0), memory if self._uses_memory else (), plan)

    def find_direction(self, server: Server, stack, round_num):
        """The finalizer of the gradients: `d`, `gamma`, and, without a search, the step along it.

        Args:
            server: The state.
            stack: A `Stack` of `Upload`s.
            round_num: int32 scalar.
        """
        uploads = stack.accepted(stack.value.client_id)
        memory = server.memory or gradient_memory.empty_memory(0, uploads.gradient.shape[1])
        grams = gradient_memory.gram_matrices(uploads.gradient, memory)
        norms = tf.sqrt(tf.linalg.diag_part(grams.online))
        live = norms > ZERO_GRADIENT
        clients_seen = _clients_seen(server.clients_seen, memory, uploads, live)
        window = clients_seen / tf.maximum(tf.size(live), 1)
        absent = gradient_memory.absent(memory, uploads.client_id, round_num, window)
        norm, num_outliers = common_descent.common_norm(norms, live, self.outlier_ratio)
        fairness_gradient = common_descent.fairness_weights(uploads.loss, live)
        descent = self._descent(grams, live, absent, fairness_gradient, norm)
        direction = gradient_memory.direction(descent, uploads.gradient, memory)
        if self._uses_memory:
            memory = gradient_memory.remember(
                memory, uploads.gradient, grams, uploads.client_id, live, round_num
            )
        gamma = self._gamma(grams, descent, live, absent)

        step, search = self.local.learning_rate(round_num), ()
        if self.step_search:
            ladder = self._ladder(step, descent)
            step = tf.constant(0.0)
            search = Search(ladder, uploads.loss, descent.slopes, live, fairness_gradient)
        plan = Plan(round_num, step, direction, uploads.client_id, gamma, search)
        new = Server(
            weights=moved(server.weights, direction, step),
            clients_seen=clients_seen,
            memory=memory if self._uses_memory else (),
            plan=plan,
        )
        metrics = collections.OrderedDict(
            sigma=descent.sigma,
            direction_norm=tf.norm(direction),
            gamma=tf.reduce_sum(gamma) / tf.cast(tf.maximum(_count(live), 1), tf.float32),
            num_absent=_count(absent),
            num_zero_gradients=_count(~live),
            num_outliers=num_outliers,
            num_in_conflict=_count(live & (descent.slopes > 0.0)),
        )
        return new, metrics

    def take_step(self, server: Server, stack, round_num):
        """The finalizer of the search: the step, and the weights after it.

        Args:
            server: The state, with this round's plan.
            stack: A `Stack` of `Trials`.
            round_num: int32 scalar. Where the plan is of an earlier one, as this round's came to
                nothing, the step is 0.
        """
        plan, search = server.plan, server.plan.search
        is_of_round = tf.equal(plan.round_num, round_num)
        trials = stack.accepted(stack.value.client_id)
        is_theirs = tf.equal(plan.client_ids[:, tf.newaxis], trials.client_id)
        search = search._replace(live=search.live & tf.reduce_any(is_theirs, axis=1))
        index, accepted = step_ladder.choose_step(
            *search,
            tf.matmul(tf.cast(is_theirs, tf.float32), trials.losses),
            sufficient_decrease=self.sufficient_decrease,
        )
        step = tf.where(is_of_round, search.ladder.steps[index], 0.0)
        metrics = collections.OrderedDict(
            step=step,
            num_steps=search.ladder.count,
            num_halvings=tf.cast(index, tf.int32),
            accepted=tf.cast(accepted & is_of_round, tf.int32),
        )
        weights = moved(server.weights, plan.direction, step)
        return server._replace(weights=weights, plan=plan._replace(step=step)), metrics

    def own_gamma(self, server: Server, client_id):
        """The `gamma_i` of a client of the cohort."""
        plan = server.plan
        return tf.reduce_sum(tf.where(tf.equal(plan.client_ids, client_id), plan.gamma, 0.0))

    def _descent(self, grams, live, absent, fairness_gradient, norm):
        if self.direction == "mean":
            return common_descent.mean_descent(grams)
        return common_descent.min_norm_descent(
            grams,
            live,
            absent,
            fairness_gradient if self.fairness else None,
            norm,
            fair_from=self.fair_from,
            rescale_with=self.rescale_with,
        )

    def _ladder(self, rate, descent):
        return step_ladder.make_ladder(
            rate, descent.sigma, doublings=self.search_doublings, max_trials=self.max_trials
        )

    def _gamma(self, grams, descent, live, absent):
        gamma = tf.where(live, self.gamma, 0.0)
        if not self.personalize:
            return tf.zeros_like(gamma)
        if self.gamma_mode == "constant":
            return gamma
        protected = absent if self.protect_absent else tf.zeros_like(absent)
        auto = common_descent.personal_shares(grams, descent, live, protected)
        auto = tf.cast(auto, tf.float32)
        return tf.maximum(auto, gamma) if self.gamma_mode == "at_least" else auto


def _clients_seen(before, memory, uploads, live):
    """`M` after the cohort's gradients, of which those that are not live are 0."""
    is_remembered = gradient_memory.remembers(memory, uploads.client_id)
    # Only where somebody gave way to others does a client know more than the memory.
    gave_way = before > _count(memory.client_ids >= 0)
    was_counted = is_remembered | (~uploads.is_new & gave_way)
    return before + _count(live & ~was_counted) - _count(~live & was_counted)


def moved(weights, vector, step):
    """`weights + step * vector`, for a vector `[n]`."""
    return trees.add(weights, trees.scale(trees.from_vector(vector, weights), step))


def _count(condition):
    return tf.reduce_sum(tf.cast(condition, tf.int32))

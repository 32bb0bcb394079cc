"""FedPG's server: finds a direction from a cohort's gradients, and takes a step along it."""

import collections
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedpg import common_descent, gradient_memory
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least_or_infinite, between, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Weights
from tff_pfl.numerics.host import on_host

DIRECTIONS = ("mgda", "mean")
GAMMA_MODES = ("auto", "constant", "at_least")
SCALES = ("scaled", "raw")
ZERO_GRADIENT = 1e-6  # a client with a gradient norm up to this is done


class Upload(NamedTuple):
    """A client's upload.

    Attributes:
        client_id: int32 scalar.
        is_new: bool scalar, whether the client has never sent a gradient, or its last one was 0.
        gradient: float32 `[n]`.
        loss: float32 scalar, the loss at the weights that the client received.
    """

    client_id: tf.Tensor
    is_new: tf.Tensor
    gradient: tf.Tensor
    loss: tf.Tensor


class Plan(NamedTuple):
    """The server's decisions in a round.

    Attributes:
        round_num: int32 scalar, the round; -1 before the first.
        step: float32 scalar, `eta`.
        direction: float32 `[n]`, `d`.
        client_ids: int32 `[?]`, the cohort, in ascending order.
        gamma: float32 `[?]`, the `gamma_i` of these clients.
        search: In S-FedPG, the `Search` for the step; else `()`.
    """

    round_num: tf.Tensor
    step: tf.Tensor
    direction: tf.Tensor
    client_ids: tf.Tensor
    gamma: tf.Tensor
    search: tuple = ()


class Server(NamedTuple):
    """Server state.

    Attributes:
        weights: `W`.
        clients_seen: int32 scalar, `M`, the number of clients whose last gradient was not 0: the
            slots that an unbounded memory would use.
        memory: The `GradientMemory`, or `()`.
        plan: The `Plan` of the last round.
    """

    weights: Weights
    clients_seen: tf.Tensor
    memory: gradient_memory.GradientMemory | tuple[()]
    plan: Plan


class Found(NamedTuple):
    """The intermediate results for a cohort, with rows in the order of ids.

    Attributes:
        losses: float32 `[?]`, the losses at `w`.
        live: bool `[?]`, which gradients are not 0.
        fairness_gradient: float64 `[?]`, `h`.
        descent: The `CommonDescent`.
    """

    losses: tf.Tensor
    live: tf.Tensor
    fairness_gradient: tf.Tensor
    descent: common_descent.CommonDescent


@takes(memory_size=whole(1), gamma=between(0, 1), outlier_ratio=at_least_or_infinite(1))
@dataclasses.dataclass(frozen=True)
class FedPGServer:
    """The server's computations as pure functions.

    Attributes:
        local: The local training, whose learning rate and decay are the step `eta`.
        direction: The common direction: "mgda", the min-norm direction; or "mean", minus the mean
            of the raw gradients, without memory and fairness.
        fairness: Whether fairness is one of the objectives.
        absent_memory: Whether the last gradients of absent clients are among the objectives.
        memory_size: The number of clients whose newest gradients the server keeps, in
            `4 n memory_size` bytes. The paper keeps a gradient of every client ever seen: with
            more than 100 clients, set this to their number to protect absent ones as it does.
        personalize: Whether clients leave the common direction; if not, `gamma_i = 0`.
        gamma_mode: The choice of `gamma_i`: "auto", the largest that hurts no other online client;
            "constant", `gamma`; or "at_least", the larger of the two.
        gamma: The `gamma_i` of the mode "constant", and the least one of "at_least"; in [0, 1].
        protect_absent: Whether `gamma_i` must not hurt absent clients either.
        fair_from: The gradients that make up the fairness gradient: "scaled" or "raw".
        rescale_with: The gradients whose mean gives `d` its length: "scaled" or "raw".
        outlier_ratio: Online gradients longer than this many times their median norm do not count
            in `mu`; `None`: all count, as in the paper.
    """

    local: LocalTraining
    _: dataclasses.KW_ONLY
    direction: str = "mgda"
    fairness: bool = True
    absent_memory: bool = True
    memory_size: int = 100
    personalize: bool = True
    gamma_mode: str = "auto"
    gamma: float = 0.0
    protect_absent: bool = False
    fair_from: str = "scaled"
    rescale_with: str = "scaled"
    outlier_ratio: float | None = 100.0

    def __post_init__(self):
        """Checks the options that are names."""
        check_names("direction", [self.direction], DIRECTIONS)
        check_names("gamma_mode", [self.gamma_mode], GAMMA_MODES)
        check_names("fair_from", [self.fair_from], SCALES)
        check_names("rescale_with", [self.rescale_with], SCALES)

    @property
    def _uses_memory(self) -> bool:
        return self.absent_memory and self.direction == "mgda"

    def init(self, weights) -> Server:
        """Returns the state before the first round."""
        (num_weights,) = trees.to_vector(weights).shape
        plan = Plan(
            round_num=tf.constant(-1),
            step=tf.constant(0.0),
            direction=tf.zeros([num_weights]),
            client_ids=trees.no_rows([], tf.int32),
            gamma=trees.no_rows([], tf.float32),
        )
        memory = gradient_memory.empty_memory(self.memory_size, num_weights)
        return Server(weights, tf.constant(0), memory if self._uses_memory else (), plan)

    def take_direction(self, server: Server, stack, round_num):
        """Finalizes the first exchange: finds `d` and `gamma`, and takes the step along `d`."""
        planned, _, metrics = self.find_direction(server, stack, round_num)
        return stepped(planned, self.local.learning_rate(round_num)), metrics

    def find_direction(self, server: Server, stack, round_num):
        """Finds `d` and `gamma`, and puts them into a plan whose step is still 0.

        Args:
            server: The state.
            stack: A `Stack` of `Upload`s.
            round_num: int32 scalar.

        Returns:
            The state with the plan, a `Found`, and metrics.
        """
        uploads = stack.accepted(stack.value.client_id)
        memory = server.memory or gradient_memory.empty_memory(0, uploads.gradient.shape[1])
        grams = gradient_memory.gram_matrices(uploads.gradient, memory)
        with on_host():
            norms = tf.sqrt(tf.linalg.diag_part(grams.online))
            live = norms > ZERO_GRADIENT
            clients_seen = _clients_seen(server.clients_seen, memory, uploads, live)
            window = clients_seen / tf.maximum(tf.size(live), 1)
            absent = gradient_memory.absent(memory, uploads.client_id, round_num, window)
            norm, num_outliers = common_descent.common_norm(norms, live, self.outlier_ratio)
            fairness_gradient = common_descent.fairness_weights(uploads.loss, live)
            descent = self._descent(grams, live, absent, fairness_gradient, norm)
            gamma = self._gamma(grams, descent, live, absent)
        direction = gradient_memory.direction(descent, uploads.gradient, memory)
        if self._uses_memory:
            memory = gradient_memory.remember(
                memory, uploads.gradient, grams, uploads.client_id, live, round_num
            )
        planned = server._replace(
            clients_seen=clients_seen,
            memory=memory if self._uses_memory else (),
            plan=Plan(round_num, tf.constant(0.0), direction, uploads.client_id, gamma),
        )
        metrics = collections.OrderedDict(
            sigma=descent.sigma,
            direction_norm=tf.norm(direction),
            gamma=tf.reduce_sum(gamma) / tf.cast(tf.maximum(trees.count(live), 1), tf.float32),
            num_absent=trees.count(absent),
            num_zero_gradients=trees.count(~live),
            num_outliers=num_outliers,
            num_in_conflict=trees.count(live & (descent.slopes > 0.0)),
        )
        return planned, Found(uploads.loss, live, fairness_gradient, descent), metrics

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
    """Computes `M` after the cohort's gradients; gradients that are not live are 0."""
    is_remembered = gradient_memory.remembers(memory, uploads.client_id)
    # A client knows more than the memory only if the memory has dropped a gradient.
    gave_way = before > trees.count(memory.client_ids >= 0)
    was_counted = is_remembered | (~uploads.is_new & gave_way)
    return before + trees.count(live & ~was_counted) - trees.count(~live & was_counted)


def own_gamma(server: Server, client_id):
    """Returns the `gamma_i` of a client of the cohort."""
    plan = server.plan
    return tf.reduce_sum(tf.where(tf.equal(plan.client_ids, client_id), plan.gamma, 0.0))


def stepped(server: Server, step) -> Server:
    """Moves the weights by `step` times the plan's direction."""
    weights = moved(server.weights, server.plan.direction, step)
    return server._replace(weights=weights, plan=server.plan._replace(step=step))


def moved(weights, vector, step):
    """Returns `weights + step * vector`, for a vector `[n]`."""
    return trees.add(weights, trees.scale(trees.from_vector(vector, weights), step))

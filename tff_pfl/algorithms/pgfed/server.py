"""PGFed's server: the last cohort's risks as linear functions, and who takes how much of whose.

`J` is the last cohort and `k` its size; for `j` in `J`, `g_j` is the gradient of the risk `f_j` at
that client's model `theta_j`, and `l_j = f_j(theta_j) - g_j . theta_j`: near `theta_j`, the risk is
`f_j(theta) ~ l_j + g_j . theta`.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.pgfed.pairs import Pairs, get_pairs, no_pairs, put_pairs
from tff_pfl.local import trees
from tff_pfl.models import Weights


class LastCohort(NamedTuple):
    """The linear risks of the clients that the last round accepted; none before the first round.

    Attributes:
        client_ids: int32 `[k]`.
        gradients: `g_j`: `W`, each tensor with a leading axis of `k`.
        intercepts: `l_j`: float32 `[k]`.
    """

    client_ids: tf.Tensor
    gradients: Weights
    intercepts: tf.Tensor


class PGFedState(NamedTuple):
    """Server state.

    Attributes:
        weights: `W`, the global model.
        alpha: `Pairs`; the number of `(i, j)` is how much client `i` takes of the risk of client
            `j`.
        last: A `LastCohort`.
    """

    weights: Weights
    alpha: Pairs
    last: LastCohort


class Shared(NamedTuple):
    """What every client receives.

    Attributes:
        weights: `W`, the global model.
        num_last: int32 scalar, `k`.
        mean_gradient: `W`, `(mu / k) sum_j g_j`; `()` in PGFed-CE.
        intercepts: float32 `[largest_cohort]`, `mu l_j`, and then zeros; `()` in PGFed-CE.
    """

    weights: Weights
    num_last: tf.Tensor
    mean_gradient: Weights | tuple = ()
    intercepts: tf.Tensor | tuple = ()


class Own(NamedTuple):
    """What one client receives.

    Attributes:
        auxiliary_gradient: `W`, `a_i = mu sum_j alpha_ij g_j`.
        alpha: float32 `[largest_cohort]`, `alpha_ij`, and then zeros; `()` in PGFed-CE.
    """

    auxiliary_gradient: Weights
    alpha: tf.Tensor | tuple = ()


class Risk(NamedTuple):
    """What a client sends of its own, besides its model.

    Attributes:
        client_id: int32 scalar.
        gradient: `W`, `g_i`.
        intercept: float32 scalar, `l_i`.
        alpha: float32 `[largest_cohort]` after the client's last step; in PGFed-CE `()`.
        num_steps: int32 scalar, the steps that the client did, in PGFed-CE; else `()`.
    """

    client_id: tf.Tensor
    gradient: Weights
    intercept: tf.Tensor
    alpha: tf.Tensor | tuple = ()
    num_steps: tf.Tensor | tuple = ()


@dataclasses.dataclass(frozen=True)
class PGFedServer:
    """The server's part of PGFed; see `tff_pfl.algorithms.pgfed` for its parameters."""

    num_clients: int
    clients_per_round: int
    largest_cohort: int
    mu: float
    alpha_learning_rate: float
    communication_efficient: bool

    def init(self, weights: Any) -> PGFedState:
        """The state before the first round."""
        return PGFedState(
            weights,
            no_pairs(1.0 / self.clients_per_round),
            LastCohort(
                client_ids=trees.no_rows([], tf.int32),
                gradients=tf.nest.map_structure(lambda w: trees.no_rows(w.shape, w.dtype), weights),
                intercepts=trees.no_rows([], tf.float32),
            ),
        )

    def shared(self, server: PGFedState) -> Shared:
        """What every client receives."""
        num_last = tf.size(server.last.client_ids)
        if self.communication_efficient:
            return Shared(server.weights, num_last)
        return Shared(
            server.weights,
            num_last,
            self._mean_gradient(server.last),
            self._padded(self.mu * server.last.intercepts),
        )

    def own(self, server: PGFedState, client_id: tf.Tensor) -> Own:
        """What a client alone receives."""
        alpha = self._alpha(server, [client_id])[0]
        auxiliary_gradient = trees.combine(self.mu * alpha, server.last.gradients)
        if self.communication_efficient:
            return Own(auxiliary_gradient)
        return Own(auxiliary_gradient, self._padded(alpha))

    def finalize(self, server: PGFedState, uploads: Any, round_num: tf.Tensor):
        """The state after a round, and metrics.

        Args:
            server: The state before the round.
            uploads: `change`, the mean change of `W`; and `risk`, a `Stack` of `Risk`.
            round_num: Not used.
        """
        del round_num
        risks = uploads["risk"].accepted(uploads["risk"].value.client_id)
        fits = tf.debugging.assert_less_equal(
            tf.size(risks.client_id),
            self.largest_cohort,
            f"This PGFed was built for {self.largest_cohort} clients a round at most.",
        )
        with tf.control_dependencies([fits]):
            alpha = self._updated_alpha(server, risks)
        weights = trees.add(server.weights, uploads["change"])
        last = LastCohort(risks.client_id, risks.gradient, risks.intercept)
        return PGFedState(weights, alpha, last), self._metrics(alpha)

    def _alpha(self, server, client_ids):
        """Of some clients for the last cohort: float32 `[len(client_ids), k]`."""
        return get_pairs(server.alpha, self.num_clients, client_ids, server.last.client_ids)

    def _metrics(self, alpha):
        met, others = alpha.values[:-1], alpha.values[-1]
        num_pairs = self.num_clients**2
        # TensorFlow takes an integer that int32 does not have for another one, without a word.
        all_met = tf.equal(tf.size(met, tf.int64), tf.constant(num_pairs, tf.int64))
        largest_other = tf.where(all_met, 0.0, others)
        return collections.OrderedDict(
            alpha_mean=others + tf.reduce_sum(met - others) / num_pairs,
            alpha_max=tf.maximum(tf.reduce_max(met), largest_other),
            alpha_zeros=tf.reduce_sum(tf.cast(tf.equal(met, 0.0), tf.float32)) / num_pairs,
        )

    def _updated_alpha(self, server, risks):
        """`alpha`, with the entries of this cohort's rows and the last cohort's columns new."""
        last = server.last
        if self.communication_efficient:
            rows = self._alpha(server, risks.client_id)
            at_weights = trees.dot(self._mean_gradient(last), server.weights)
            slopes = self.mu * last.intercepts + at_weights
            steps = tf.cast(risks.num_steps, tf.float32)[:, tf.newaxis]
            rows = tf.maximum(rows - steps * self.alpha_learning_rate * slopes, 0.0)
        else:
            rows = risks.alpha[:, : tf.size(last.client_ids)]
        return put_pairs(server.alpha, self.num_clients, risks.client_id, last.client_ids, rows)

    def _mean_gradient(self, last):
        """`(mu / k) sum_j g_j`."""
        num_last = tf.maximum(tf.size(last.client_ids), 1)
        mean = tf.ones_like(last.intercepts) / tf.cast(num_last, tf.float32)
        return trees.combine(self.mu * mean, last.gradients)

    def _padded(self, values):
        padded = tf.pad(values, [[0, self.largest_cohort - tf.size(values)]])
        return tf.ensure_shape(padded, [self.largest_cohort])

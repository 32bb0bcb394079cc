"""PGFed's server: the last cohort's risks as linear functions, and the clients' weights of them.

`J` is the last cohort and `k` its size. For `j` in `J`, `g_j` is the gradient of the risk `f_j` at
that client's model `theta_j`, and `l_j = f_j(theta_j) - g_j . theta_j`. Near `theta_j`, the risk is
`f_j(theta) ~ l_j + g_j . theta`.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.pgfed.sparse_matrix import SparseMatrix, constant, get_entries, put_entries
from tff_pfl.local import trees
from tff_pfl.models import Weights
from tff_pfl.numerics.host import on_host


class LastCohort(NamedTuple):
    """The linear risks of the clients that the last round accepted; empty before the first round.

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
        alpha: A `SparseMatrix`; `(i, j)` is client `i`'s weight of the risk of client `j`.
        last: A `LastCohort`.
    """

    weights: Weights
    alpha: SparseMatrix
    last: LastCohort


class Shared(NamedTuple):
    """The message to all clients.

    Attributes:
        weights: `W`, the global model.
        num_last: int32 scalar, `k`.
        mean_gradient: `W`, `(mu / k) sum_j g_j`; `()` in PGFed-CE.
        intercepts: float32 `[largest_cohort]`, `mu l_j`, padded with zeros; `()` in PGFed-CE.
    """

    weights: Weights
    num_last: tf.Tensor
    mean_gradient: Weights | tuple = ()
    intercepts: tf.Tensor | tuple = ()


class Own(NamedTuple):
    """The message to one client.

    Attributes:
        auxiliary_gradient: `W`, `a_i = mu sum_j alpha_ij g_j`.
        alpha: float32 `[largest_cohort]`, `alpha_ij`, padded with zeros; `()` in PGFed-CE.
    """

    auxiliary_gradient: Weights
    alpha: tf.Tensor | tuple = ()


class Risk(NamedTuple):
    """The part of a client's upload that is not averaged.

    Attributes:
        client_id: int32 scalar.
        gradient: `W`, `g_i`.
        intercept: float32 scalar, `l_i`.
        alpha: float32 `[largest_cohort]`, `alpha_ij` after the client's last step; in PGFed-CE
            int32 scalar, the number of the client's steps.
    """

    client_id: tf.Tensor
    gradient: Weights
    intercept: tf.Tensor
    alpha: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PGFedServer:
    """PGFed's server, and the steps of `alpha_ij`.

    The parameters are explained in `tff_pfl.algorithms.pgfed`.
    """

    num_clients: int
    clients_per_round: int
    largest_cohort: int
    mu: float
    alpha_learning_rate: float

    def init(self, weights: Any) -> PGFedState:
        """Returns the state before the first round."""
        return PGFedState(
            weights,
            constant(1.0 / self.clients_per_round),
            LastCohort(
                client_ids=trees.no_rows([], tf.int32),
                gradients=tf.nest.map_structure(lambda w: trees.no_rows(w.shape, w.dtype), weights),
                intercepts=trees.no_rows([], tf.float32),
            ),
        )

    def shared(self, server: PGFedState) -> Shared:
        """Makes the message to all clients."""
        return Shared(
            server.weights,
            tf.size(server.last.client_ids),
            self._mean_gradient(server.last),
            self._padded(self.mu * server.last.intercepts),
        )

    def own(self, server: PGFedState, client_id: tf.Tensor) -> Own:
        """Makes the message to one client."""
        alpha = self._alpha(server, [client_id])[0]
        auxiliary_gradient = trees.combine(self.mu * alpha, server.last.gradients)
        return Own(auxiliary_gradient, self._padded(alpha))

    def received_alpha(self, own: Own) -> tf.Tensor:
        """Returns a client's `alpha_ij` before its first step."""
        return own.alpha

    def stepped_alpha(self, alpha: tf.Tensor, shared: Shared, theta: Weights) -> tf.Tensor:
        """Returns a client's `alpha_ij` after a step, which comes before the step of `theta_i`."""
        slopes = shared.intercepts + trees.dot(shared.mean_gradient, theta)
        return tf.maximum(alpha - self.alpha_learning_rate * slopes, 0.0)

    def finalize(self, server: PGFedState, uploads: Any, round_num: tf.Tensor):
        """Returns the state after a round, and metrics.

        Args:
            server: The state before the round.
            uploads: A mapping of `change`, the mean change of `W`, and `risk`, a `Stack` of `Risk`.
            round_num: Unused.
        """
        del round_num
        risks = uploads["risk"].accepted(uploads["risk"].value.client_id)
        fits = tf.debugging.assert_less_equal(
            tf.size(risks.client_id),
            self.largest_cohort,
            f"This PGFed was built for at most {self.largest_cohort} clients a round.",
        )
        with tf.control_dependencies([fits]):
            alpha = self._updated_alpha(server, risks)
        weights = trees.add(server.weights, uploads["change"])
        last = LastCohort(risks.client_id, risks.gradient, risks.intercept)
        return PGFedState(weights, alpha, last), self._metrics(alpha)

    def _alpha(self, server, client_ids):
        """Returns clients' `alpha_ij` of the last cohort: float32 `[len(client_ids), k]`."""
        return get_entries(server.alpha, self.num_clients, client_ids, server.last.client_ids)

    @on_host()
    def _metrics(self, alpha):
        entries, common = alpha.values[:-1], alpha.values[-1]
        num_pairs = self.num_clients**2
        # TensorFlow silently wraps an integer that int32 cannot hold.
        is_full = tf.equal(tf.size(entries, tf.int64), tf.constant(num_pairs, tf.int64))
        largest_other = tf.where(is_full, 0.0, common)
        return collections.OrderedDict(
            alpha_mean=common + tf.reduce_sum(entries - common) / num_pairs,
            alpha_max=tf.maximum(tf.reduce_max(entries), largest_other),
            alpha_zeros=tf.reduce_sum(tf.cast(tf.equal(entries, 0.0), tf.float32)) / num_pairs,
        )

    def _updated_alpha(self, server, risks):
        """Updates `alpha` in the rows of this cohort and the columns of the last cohort."""
        rows = self._rows(server, risks)
        last_ids = server.last.client_ids
        return put_entries(server.alpha, self.num_clients, risks.client_id, last_ids, rows)

    def _rows(self, server, risks):
        """Returns the new `alpha_ij` of this cohort for the last one."""
        return risks.alpha[:, : tf.size(server.last.client_ids)]

    def _mean_gradient(self, last):
        """Computes `(mu / k) sum_j g_j`."""
        num_last = tf.maximum(tf.size(last.client_ids), 1)
        mean = tf.ones_like(last.intercepts) / tf.cast(num_last, tf.float32)
        return trees.combine(self.mu * mean, last.gradients)

    def _padded(self, values):
        padded = tf.pad(values, [[0, self.largest_cohort - tf.size(values)]])
        return tf.ensure_shape(padded, [self.largest_cohort])


class PGFedCEServer(PGFedServer):
    """PGFed-CE's server, which moves `alpha_ij` itself, along a slope at `w`.

    The slope is constant during the round: clients only count their steps, and the server makes
    as many at once. Neither the mean gradient nor `alpha_ij` is sent.
    """

    def shared(self, server: PGFedState) -> Shared:
        """See the base class."""
        return Shared(server.weights, tf.size(server.last.client_ids))

    def own(self, server: PGFedState, client_id: tf.Tensor) -> Own:
        """See the base class."""
        return Own(super().own(server, client_id).auxiliary_gradient)

    def received_alpha(self, own: Own) -> tf.Tensor:
        """Returns the number of steps that a client has made: 0."""
        return tf.constant(0)

    def stepped_alpha(self, alpha: tf.Tensor, shared: Shared, theta: Weights) -> tf.Tensor:
        """Counts one more step."""
        return alpha + 1

    def _rows(self, server, risks):
        last = server.last
        at_weights = trees.dot(self._mean_gradient(last), server.weights)
        slopes = self.mu * last.intercepts + at_weights
        steps = tf.cast(risks.alpha, tf.float32)[:, tf.newaxis]
        rows = self._alpha(server, risks.client_id)
        return tf.maximum(rows - steps * self.alpha_learning_rate * slopes, 0.0)

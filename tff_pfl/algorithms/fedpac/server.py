"""FedPAC's server: global centres of features, and combinations of the clients' heads."""

import collections
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedpac.collaboration import combinations
from tff_pfl.algorithms.fedproto import ClassSums, Prototypes, moved, unknown
from tff_pfl.local import trees
from tff_pfl.models import Weights
from tff_pfl.templates import ClientOutput
from tff_pfl.templates.averaging import SharedPart


class Heads(NamedTuple):
    """The combined heads of a cohort.

    Attributes:
        round_num: int32 scalar, the round; -1 before the first.
        client_ids: int32 `[?]`, the cohort, in ascending order.
        heads: The clients' new heads, stacked along a leading axis.
    """

    round_num: tf.Tensor
    client_ids: tf.Tensor
    heads: Weights


class Server(NamedTuple):
    """Server state: a `SharedPart`, the body; the global `centres`; and the cohort's `heads`."""

    weights: Weights
    optimizer: Any
    centres: Prototypes
    heads: Heads


class OwnUpload(NamedTuple):
    """The part of a client's upload that is not averaged.

    Attributes:
        client_id: int32 scalar.
        head: Its trained head.
        mean: float32 `[c, d]`, `h_i`.
        variance: float32 scalar, `V_i`.
        features: float32 `[c, d]`, the sum of the features of each class under its trained body.
        counts: float32 `[c]`, the number of examples of each class.
    """

    client_id: tf.Tensor
    head: Weights
    mean: tf.Tensor
    variance: tf.Tensor
    features: tf.Tensor
    counts: tf.Tensor


class Upload(NamedTuple):
    """A client's upload: the `change` of the body, which is averaged, and its `own` part."""

    change: Weights
    own: OwnUpload


def initial(shared: SharedPart, head: Weights, num_classes: int, dim: int) -> Server:
    """Returns the state before the first round, without centres and heads."""
    rows = tf.nest.map_structure(lambda leaf: trees.no_rows(leaf.shape, leaf.dtype), head)
    return Server(
        *shared,
        unknown(num_classes, dim),
        Heads(tf.constant(-1), trees.no_rows([], tf.int32), rows),
    )


def with_uploads(server: Server, stack: Any, round_num: tf.Tensor):
    """Updates the centres, and combines the heads of a cohort.

    Args:
        server: The state.
        stack: A `Stack` of `OwnUpload`s.
        round_num: int32 scalar.

    Returns:
        The new state, and metrics.
    """
    uploads = stack.accepted(stack.value.client_id)
    alpha = combinations(uploads.mean, uploads.variance)
    heads = Heads(round_num, uploads.client_id, trees.combine(alpha, uploads.head))
    own = tf.linalg.diag_part(alpha)
    size = tf.maximum(tf.cast(tf.size(own), tf.float64), 1.0)
    metrics = collections.OrderedDict(alpha_own=tf.reduce_sum(own) / size)
    sums = ClassSums(*(tf.reduce_sum(it, axis=0) for it in (uploads.features, uploads.counts)))
    return server._replace(centres=moved(server.centres, sums), heads=heads), metrics


def own_head(server: Server, client_id: tf.Tensor):
    """Returns the round of a client's new head, or -1 if it has none, and the head."""
    is_own = tf.equal(server.heads.client_ids, client_id)
    round_num = tf.where(tf.reduce_any(is_own), server.heads.round_num, -1)
    return round_num, trees.combine(tf.cast(is_own, tf.float32), server.heads.heads)


def take_head(message, state, examples, context):
    """Replaces a client's head by the one it receives, if that is from this round."""
    del examples
    round_num, head = message.own
    is_there = tf.equal(round_num, context.round_num)
    return ClientOutput(state=state._replace(head=trees.select(is_there, head, state.head)))

"""Rules for clients side by side, each of which makes its own number of steps.

Clients are sorted by their numbers of examples, the most first: each has a lane. A loop that
clients leave after different numbers of steps runs on all lanes until few are left in it, and then
on a prefix of them. In a lane whose client has left the loop, nothing changes. Results are right
for clients in any order; with sorted ones, few lanes idle.

Clients' examples lie in one buffer. A client's rows are gathered from it, so that a client with few
examples is not padded to the rows of another.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tff_pfl.runtime.graph import internals

# A loop continues on a prefix of this share of its lanes when no client of another is in it.
_SHARE = 4
# The lanes times weights of a layer up to which more lanes take hardly longer. On an H200, 100
# lanes of 784 x 10 weights take 1.5 times as long as 10, and of PGFed's CNN, with 819,200 in a
# layer, 7.3 times (docs/results/gpu.md). On CPUs, 1, 2 and 4 of 784 x 10 take 57, 172 and 275 us.
_FREE_ON_GPUS, _FREE = 1_000_000, 2_000


def prefixes(lanes: int, are_equal: bool, size: int, *, is_gpu: bool) -> tuple[int, ...]:
    """Returns the numbers of lanes on which a loop runs, one after the other.

    Each is a copy of the loop, which XLA has to compile. There are more as long as fewer lanes
    save time.

    Args:
        lanes: The number of lanes.
        are_equal: Whether all clients have equal numbers of examples.
        size: The number of weights of the largest layer.
        is_gpu: Whether the device is a GPU.
    """
    found, free = [lanes], _FREE_ON_GPUS if is_gpu else _FREE
    while not are_equal and found[-1] > 1 and found[-1] * size > free:
        found.append(-(-found[-1] // _SHARE))
    return tuple(found)


class RowsOf(internals.WrappedTensor):
    """A tensor of each client whose rows lie in a buffer.

    Attributes:
        buffer: The rows of all clients, `[rows, ...]`.
        starts: int32 `[lanes]`, the row at which each client begins.
        all_rows: A tensor whose size is the number of rows of each client, padding included. XLA
            knows the size of a tensor, but not a number from outside of a loop. Padding has any
            values.
    """

    def __new__(cls, buffer: tf.Tensor, starts: tf.Tensor, all_rows: tf.Tensor):
        """Makes the tensor."""
        made = super().__new__(cls, None, True, False)
        made.buffer, made.starts, made.all_rows = buffer, starts, all_rows
        return made

    def shape(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the shape of a client's tensor."""
        return tf.concat([tf.shape(self.all_rows, dtype), tf.shape(self.buffer, dtype)[1:]], axis=0)

    @property
    def t(self) -> tf.Tensor:
        """The stack of all rows of each client."""
        return self.gathered(tf.range(tf.size(self.all_rows)), are_stacked=False)

    def __iter__(self):
        """Iterates over the fields of any wrapped tensor."""
        return iter((self.t, True, False))

    def __getitem__(self, index):
        """Returns a field."""
        return tuple(self)[index]

    def gathered(self, rows: tf.Tensor, are_stacked: bool) -> tf.Tensor:
        """Returns the rows of each client that have these numbers, its own or shared ones."""
        rows = tf.cast(rows if are_stacked else rows[tf.newaxis], tf.int32)
        starts = tf.reshape(self.starts, [-1] + [1] * (rows.shape.rank - 1))
        return tf.gather(self.buffer, tf.minimum(starts + rows, tf.shape(self.buffer)[0] - 1))

    def prefix(self, lanes: int) -> "RowsOf":
        """Returns the same of the first clients."""
        return RowsOf(self.buffer, self.starts[:lanes], self.all_rows)


def rules(general: dict[str, Callable]) -> dict[str, Callable]:
    """Returns rules for `RowsOf` by type of operation; `general` has those for other tensors."""

    def of_rows(rule, otherwise):
        def convert(pfor_input):
            rows = pfor_input.inputs[0]
            found = rule(rows, pfor_input) if isinstance(rows, RowsOf) else None
            return otherwise(pfor_input) if found is None else found

        return convert

    own = {"GatherV2": _gather, "Identity": lambda rows, _: rows, "Shape": _shape, "Size": _size}
    return {kind: of_rows(rule, general[kind]) for kind, rule in own.items()}


def _gather(rows, pfor_input):
    _, indices, axis = pfor_input.inputs
    if tf.get_static_value(axis.t) != 0 or pfor_input.get_attr("batch_dims"):
        return None
    return internals.pfor_wrap(rows.gathered(indices.t, indices.is_stacked), True)


def _shape(rows, pfor_input):
    return internals.pfor_wrap(rows.shape(tf.as_dtype(pfor_input.get_attr("out_type"))), False)


def _size(rows, pfor_input):
    shape = rows.shape(tf.as_dtype(pfor_input.get_attr("out_type")))
    return internals.pfor_wrap(tf.reduce_prod(shape), False)


def where_active(active: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns the new rows in active lanes, and the old ones in others."""
    return tf.where(tf.reshape(active, [-1] + [1] * (new.shape.rank - 1)), new, old)


def put_prefix(prefix: tf.Tensor, lanes: tf.Tensor, number: int) -> tf.Tensor:
    """Returns a stack with its first rows, so many, replaced."""
    return tf.concat([prefix, lanes[number:]], axis=0)


def unused(rows: RowsOf) -> tf.Tensor:
    """Returns a scalar that stands for rows among the arguments of functions."""
    return tf.zeros([], rows.buffer.dtype)


def flags_of(inputs: Sequence) -> list:
    """Returns for each tensor whether it is stacked, or the tensor itself if it is `RowsOf`."""
    return [x if isinstance(x, RowsOf) else x.is_stacked for x in inputs]

"""What client work knows of the round it is done in."""

from typing import Any, NamedTuple

import tensorflow as tf


class ClientContext(NamedTuple):
    """What client work may know besides its message, its state and its examples.

    Attributes:
        round_num: int32 scalar, the number of rounds done before this one; what is done for an
            evaluation alone, such as fine-tuning, knows the last round, whose learning rate it has.
        client_id: int32 scalar.
        seed: `int32[2]`, a function of (run seed, round, client id, exchange): client work draws
            its randomness from it by stateless ops, so that a round is a pure function.
        carry: `ClientOutput.carry` of the client's previous exchange in this round; `()` in the
            first one.
    """

    round_num: tf.Tensor
    client_id: tf.Tensor
    seed: tf.Tensor
    carry: Any = ()

    def of_evaluation(self) -> "ClientContext":
        """After a round, as if in it; before the first, as if in that. The seed stays."""
        return self._replace(round_num=tf.maximum(self.round_num - 1, 0))

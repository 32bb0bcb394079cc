"""A client's examples as tensors: what every client computation of this library reads."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff


class Examples(NamedTuple):
    """The examples of one client, TFF type `<x=T[?,...], y=int32[?], size=int32>`.

    Attributes:
        x: Inputs, one row an example, in the data type they are stored in (images: uint8). They
            become floats inside the client's graph.
        y: int32 class labels, one a row.
        size: int32 scalar, how many rows are examples. Rows past `size` are padding, so that
            clients of different sizes can share a shape; they never influence a result.
    """

    x: Any
    y: Any
    size: Any


class Batch(NamedTuple):
    """A mini-batch, always of the full batch size.

    Attributes:
        x: `[batch_size, ...]` inputs.
        y: `[batch_size]` int32 labels.
        weight: `[batch_size]` float32, 1 for an example and 0 for a row that only fills the
            batch up. Losses and gradients weigh examples by it, which makes partial batches exact.
        seed: `int32[2]`, the randomness of this batch for stateless ops (dropout).
    """

    x: Any
    y: Any
    weight: Any
    seed: Any


def examples_type(x_shape, x_dtype=np.uint8, capacity=None) -> tff.types.StructWithPythonType:
    """The TFF type of a client's `Examples`.

    Args:
        x_shape: Shape of one input, without the leading axis.
        x_dtype: Data type of the inputs as they are stored.
        capacity: Number of rows, or `None` where it differs between clients.
    """
    return tff.types.StructWithPythonType(
        [
            ("x", tff.types.TensorType(x_dtype, (capacity, *x_shape))),
            ("y", tff.types.TensorType(np.int32, (capacity,))),
            ("size", tff.types.TensorType(np.int32)),
        ],
        Examples,
    )

"""Makes tensors from arrays without a copy."""

import math

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64  # bytes; TensorFlow copies arrays that begin elsewhere


def aligned_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array without values, of which `as_tensor` makes a tensor without a copy."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + num_bytes].view(dtype).reshape(shape)


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns a tensor of an array that nobody changes any more, on the CPU."""
    if array.dtype.kind not in "iuf":  # DLPack knows neither bool nor bfloat16
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

"""Makes tensors from arrays in few microseconds."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64  # bytes, of the memory of TensorFlow's tensors


def aligned_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array without values, of which `as_tensor` makes a tensor without a copy."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + num_bytes].view(dtype).reshape(shape)


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns a tensor of an `aligned_array` that nobody changes any more, on the CPU."""
    if not _has_dlpack(array.dtype):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def tensor_on(device: str, array: np.ndarray) -> tf.Tensor:
    """Copies an array to a device; to a CPU sooner than `tf.constant` does."""
    if not _may_share(array.dtype, device):
        with tf.device(device):
            return tf.constant(array)
    copy = aligned_array(array.shape, array.dtype)
    copy[...] = array
    return as_tensor(copy)


def stack_on(device: str, arrays: Sequence[np.ndarray]) -> tf.Tensor:
    """Stacks arrays of one shape and type on a device."""
    if not _may_share(arrays[0].dtype, device):
        with tf.device(device):
            return tf.constant(np.stack(arrays))
    stack = aligned_array((len(arrays), *arrays[0].shape), arrays[0].dtype)
    return as_tensor(np.stack(arrays, out=stack))


def _may_share(dtype: np.dtype, device: str) -> bool:
    """Returns whether tensors on a device can use the memory of arrays."""
    return _has_dlpack(dtype) and _is_local_cpu(device)


def _has_dlpack(dtype: np.dtype) -> bool:
    return dtype.kind in "iuf" and dtype.isnative  # neither bool nor bfloat16 nor texts


@functools.cache
def _is_local_cpu(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type == "CPU" and spec.job in (None, "localhost")

"""Keeps weights that no method trains in files, from which graphs read them.

A file is named by the digest of its bytes, in `~/.cache/tff_pfl` or the folder that the environment
variable `TFF_PFL_CACHE` names. A graph reads it by TensorFlow's own operations, once for each call,
outside of all loops, so that any runtime executes it. The graph executor does not read the file in
each call: it passes one tensor, which the process maps from the file and keeps, as an argument.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import math
import os
import pathlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.output.files import whole_file

LEAST_BYTES = 64 * 2**10  # of a tensor that is kept in a file; smaller ones are constants
SUFFIX = ".frozen"
_CACHE = "TFF_PFL_CACHE"

_READ = "tff_pfl_frozen"  # the collection of a graph with a dictionary of what it reads

_eager_mode = tf.__internal__.eager_context.eager_mode
_loaded: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # tensors in memory
_owners: dict[int, tuple[weakref.ref, "Frozen"]] = {}  # by the ids of tensors in memory
_checked: set[tuple] = set()  # files whose bytes are those of their names
_variables: contextvars.ContextVar = contextvars.ContextVar("variables", default=None)


class FrozenFileError(OSError):
    """An error for a file of frozen weights that is missing or was edited."""


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A tensor that never changes.

    Attributes:
        path: The file with its bytes.
        shape: Its shape.
        dtype: Its type.
    """

    path: str
    shape: tuple[int, ...]
    dtype: tf.DType

    @classmethod
    def of(cls, value: Any) -> "Frozen | np.ndarray":
        """Writes an array to its file, unless it is there; small ones stay arrays."""
        if isinstance(value, cls):
            return value
        value = np.asarray(value)
        if value.nbytes < LEAST_BYTES:
            return value
        array = np.ascontiguousarray(value)
        content = array.reshape(-1).view(np.uint8).data
        path = _cache() / f"{hashlib.sha256(content).hexdigest()}{SUFFIX}"
        if not _is_whole(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path, "wb") as file:
                file.write(content)
        return cls(str(path), tuple(value.shape), tf.as_dtype(value.dtype))

    @property
    def num_bytes(self) -> int:
        """The number of bytes."""
        return math.prod(self.shape) * self.dtype.size

    def array(self) -> np.ndarray:
        """Returns the array, mapped from the file."""
        return (
            _mapped(self.path, _stored(self.dtype))
            .view(self.dtype.as_numpy_dtype)
            .reshape(self.shape)
        )

    def tensor(self) -> tf.Tensor:
        """Returns the tensor in the graph that is being built, or in eager mode."""
        if _variables.get() is not None:
            return self.on("CPU:0")
        # Functions of this graph, such as bodies of loops, get the tensor as an argument.
        with tf.init_scope():
            if tf.executing_eagerly():
                return self.on("CPU:0")
            collection = tf.compat.v1.get_default_graph().get_collection_ref(_READ)
            if not collection:
                collection.append({})
            (read,) = collection
            if self not in read:
                # Not a constant, whose file TensorFlow would read to infer shapes.
                path = tf.compat.v1.placeholder_with_default(self.path, [])
                content = tf.io.decode_raw(tf.io.read_file(path), _stored(self.dtype))
                read[self] = self._shaped(content)
            return read[self]

    def on(self, device: str) -> tf.Tensor:
        """Returns the tensor that this process has on a device, or the value of a variable.

        A CPU's tensor is the file itself, mapped into memory, which processes share.

        Raises:
            FrozenFileError: The file is missing, or its bytes are not those of its name.
        """
        variables = _variables.get()
        if variables is not None:
            name = pathlib.Path(self.path).stem
            if name not in variables:
                with _eager_mode():
                    content = _in_memory(self.path, _stored(self.dtype), "CPU:0")
                    variables[name] = tf.Variable(content, trainable=False, name=name)
            return self._shaped(tf.convert_to_tensor(variables[name]))
        tensor = _loaded.get((self, device))
        if tensor is None:
            with _eager_mode(), tf.device(device):
                tensor = self._shaped(_in_memory(self.path, _stored(self.dtype), device))
            _loaded[self, device] = tensor
            _owners[id(tensor)] = weakref.ref(tensor), self
        return tensor

    def _shaped(self, content):
        if self.dtype == tf.bool:
            content = tf.cast(content, tf.bool)
        elif content.dtype != self.dtype:
            content = tf.bitcast(content, self.dtype)
        return tf.reshape(content, self.shape)


def tensors_of(structure: Any) -> Any:
    """Returns a structure with tensors in place of frozen ones and arrays."""
    return tf.nest.map_structure(
        lambda leaf: leaf.tensor() if isinstance(leaf, Frozen) else tf.convert_to_tensor(leaf),
        structure,
    )


def array_of(leaf: Frozen | np.ndarray) -> np.ndarray:
    """Returns the array of a frozen tensor or array."""
    return leaf.array() if isinstance(leaf, Frozen) else leaf


def _in_memory(path: str, dtype: tf.DType, device: str) -> tf.Tensor:
    """Returns the content of a file as an eager tensor `[n]`."""
    content = tf.experimental.dlpack.from_dlpack(_mapped(path, dtype).__dlpack__())
    is_gpu = tf.DeviceSpec.from_string(device).device_type == "GPU"
    return tf.identity(content) if is_gpu else content


def _is_whole(path: pathlib.Path) -> bool:
    """Returns whether a file has the bytes of its name."""
    try:
        _mapped(str(path), tf.uint8)
    except FrozenFileError:
        return False
    return True


def _mapped(path, dtype) -> np.ndarray:
    try:
        # Copied on write, since only arrays that can be written to have a `__dlpack__`.
        array = np.asarray(np.memmap(path, dtype.as_numpy_dtype, mode="c"))
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise FrozenFileError(
            f"The frozen weights {path} cannot be read ({error}). Make the model again, which "
            "writes them."
        ) from error
    key = path, status.st_mtime_ns, status.st_size
    if key not in _checked:
        if hashlib.sha256(array.view(np.uint8).data).hexdigest() != pathlib.Path(path).stem:
            raise FrozenFileError(
                f"The frozen weights {path} were edited: they have other bytes than their name "
                "says. Make the model again, which writes them."
            )
        _checked.add(key)
    return array


def frozen_of(tensor: Any) -> Frozen | None:
    """Returns the frozen weight whose tensor in memory this is, if any."""
    reference, frozen = _owners.get(id(tensor), (lambda: None, None))
    return frozen if reference() is tensor else None


@contextlib.contextmanager
def as_variables(owner: Any) -> Iterator[None]:
    """Makes graphs read frozen weights from variables, for models that leave this machine.

    Args:
        owner: The `tf.Module` whose attribute `frozen` gets the variables, by the names of files.
    """
    if not hasattr(owner, "frozen"):
        owner.frozen = {}
    token = _variables.set(owner.frozen)
    try:
        yield
    finally:
        _variables.reset(token)


def _stored(dtype: tf.DType) -> tf.DType:
    """Returns a type of the same size, of which NumPy and TensorFlow can share memory."""
    return {tf.bfloat16: tf.uint16, tf.bool: tf.uint8}.get(dtype, dtype)


def _cache() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get(_CACHE) or os.path.join(home, "tff_pfl"))

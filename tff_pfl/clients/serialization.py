"""Values of any TFF structure of tensors as bytes, and back bit for bit.

The bytes are a safetensors file: every leaf under its path (`model/dense/kernel`, elements without
a name by index), the type signature and a checksum of the leaves in the metadata.
"""

import collections
import functools
import json
import zlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors
import safetensors.numpy
import tensorflow_federated as tff

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.structures import container_of

# One entry: safetensors writes several in no fixed order, and equal values shall have equal bytes.
_METADATA_KEY = "tff_pfl"


def serialize(value: Any, type_signature: tff.types.Type) -> bytes:
    """Serializes `value` to bytes; equal values give equal bytes.

    Args:
        value: A value of `type_signature`. Containers are what TFF accepts (NamedTuples, mappings,
            sequences, attrs, `tff.structure.Struct`), leaves NumPy arrays, TF tensors or Python
            scalars. Only Python scalars are converted to the leaf's data type.
        type_signature: A `tff.types.TensorType` of booleans, integers, floats or strings, or any
            nested `tff.types.StructType` of them.

    Raises:
        TypeError: If `value` is not of `type_signature`, or `type_signature` is not as above.
    """
    return Leaves(value, type_signature).serialize()


class Leaves:
    """The leaves of a value in arrays of their own: checked, copied and not yet bytes.

    To take and to give back a value in this form is several times as fast as through bytes.
    """

    def __init__(self, value: Any, type_signature: tff.types.Type, *, copy: bool = False):
        """Takes a value.

        Args:
            value: As in `serialize`.
            type_signature: As in `serialize`.
            copy: Whether the value may be changed before the leaves are used.

        Raises:
            TypeError: As in `serialize`.
        """
        self._type_string, self._plan = _plan(type_signature)
        self._arrays: dict[str, np.ndarray] = {}
        self._plan.flatten(value, self._arrays)
        if copy:
            self._arrays = _copies(self._arrays)

    def serialize(self) -> bytes:
        """What `serialize` gives of the value."""
        checksum = _checksum(self._type_string, self._arrays)
        specs = {
            key: safetensors.TensorSpec(
                dtype=_dtype_name(array.dtype),
                shape=array.shape,
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
            for key, array in self._arrays.items()
        }
        metadata = {_METADATA_KEY: f"{checksum} {self._type_string}"}
        return bytes(safetensors.serialize(specs, metadata=metadata))

    def value(self) -> Any:
        """The value as `deserialize` gives it, in arrays that are of nobody else."""
        return self._plan.assemble(_copies(self._arrays))


def _copies(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key: array.copy() for key, array in arrays.items()}


def deserialize(buffer: bytes, type_signature: tff.types.Type) -> Any:
    """Restores a value that `serialize` wrote.

    Args:
        buffer: What `serialize` returned.
        type_signature: The type it was serialized with.

    Returns:
        The value in the Python containers of `type_signature` (without one: an `OrderedDict` if
        elements are named, else a `tuple`). Leaves are NumPy arrays of its own that can be written.

    Raises:
        ForeignStateError: If the bytes are a value of another type.
        CorruptStateError: If the bytes are damaged.
        TypeError: If `type_signature` is none that `serialize` takes.
    """
    expected_type, plan = _plan(type_signature)
    buffer = bytes(buffer)
    try:
        header = json.loads(buffer[8 : 8 + int.from_bytes(buffer[:8], "little")])
        checksum, _, stored_type = header["__metadata__"][_METADATA_KEY].partition(" ")
        arrays = safetensors.numpy.load(buffer)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptStateError(
            f"Expected the bytes of a serialized {type_signature}, found {len(buffer)} bytes that "
            f"are damaged or something else: {e!r}"
        ) from e
    if checksum != _checksum(stored_type, arrays):
        raise CorruptStateError(
            f"The {len(buffer)} bytes of a serialized {stored_type} are damaged: wrong checksum."
        )
    if stored_type != expected_type:
        raise ForeignStateError(
            "The serialized value has another type.\n"
            f"Stored:   {stored_type}\n"
            f"Expected: {expected_type}"
        )
    return plan.assemble(arrays)


# To look into a type takes longer than to write a small state, so that it is done once.
@functools.lru_cache
def _plan(type_signature) -> tuple[str, "_Leaf | _Structure | _Text"]:
    return str(type_signature), _part(type_signature, ())


def _part(type_signature, path) -> "_Leaf | _Structure | _Text":
    if isinstance(type_signature, tff.types.StructType):
        return _Structure(type_signature, path)
    is_text = isinstance(type_signature, tff.types.TensorType) and type_signature.dtype == np.str_
    return (_Text if is_text else _Leaf)(type_signature, path)


class _Structure:
    """A structure in a type."""

    def __init__(self, struct_type: tff.types.StructType, path: tuple[str, ...]):
        names = tuple(tff.structure.name_list_with_nones(struct_type))
        if None in names and set(names) != {None}:
            raise TypeError(
                f"Expected the elements of '{_key(path)}' to be all named or all unnamed, as no "
                f"Python container holds both; found {struct_type}."
            )
        self._type, self._key, self._names = struct_type, _key(path), names
        # The part of a key is unique in the structure and without '/'.
        self._parts = [
            _part(element, (*path, str(index) if name is None else quote(name, safe="")))
            for index, (name, element) in enumerate(tff.structure.iter_elements(struct_type))
        ]
        self._container = container_of(struct_type)

    def flatten(self, value, arrays: dict[str, np.ndarray]) -> None:
        """Adds the leaves of `value` to `arrays`, by key, as they are stored."""
        for part, element in zip(self._parts, self._elements(value), strict=True):
            part.flatten(element, arrays)

    def assemble(self, arrays: dict[str, np.ndarray]) -> Any:
        """The value with these leaves, in its Python containers."""
        return self._container([part.assemble(arrays) for part in self._parts])

    def _elements(self, value) -> Iterable:
        """The elements of `value` in the order of the type."""
        kind = type(value)
        if kind in (tuple, list) and len(value) == len(self._names):
            return value
        if getattr(kind, "_fields", None) == self._names:
            return value
        if kind in (dict, collections.OrderedDict) and tuple(value) == self._names:
            return value.values()
        try:
            struct = tff.structure.from_container(value)
        except TypeError as e:
            raise TypeError(_mismatch(self._key, self._type, f"a {kind.__name__}")) from e
        names = tff.structure.name_list_with_nones(struct)
        named = any(name is not None for name in names)
        if len(names) != len(self._names) or (named and set(names) != set(self._names)):
            raise TypeError(_mismatch(self._key, self._type, f"elements {names}"))
        # By name where there are names: the order of a mapping is not part of its value.
        return [struct[name] for name in self._names] if named else struct


class _Leaf:
    """A tensor in a type."""

    def __init__(self, tensor_type: tff.types.TensorType, path: tuple[str, ...]):
        self._type, self._key = tensor_type, _key(path)
        if not isinstance(tensor_type, tff.types.TensorType) or (
            tensor_type.dtype.kind not in "biufV"
        ):
            raise TypeError(
                "Expected tensors of booleans, integers, floats or strings, "
                f"found {tensor_type} at '{self._key}'."
            )
        self._dtype, self._shape = tensor_type.dtype, tensor_type.shape
        # NumPy knows bfloat16 as an opaque type, safetensors' NumPy half not at all.
        is_opaque = self._dtype.kind == "V"
        self._stored_dtype = np.dtype(f"u{self._dtype.itemsize}") if is_opaque else self._dtype

    def flatten(self, value, arrays: dict[str, np.ndarray]) -> None:
        """Adds `value`, contiguous and of a data type that safetensors has."""
        if type(value) in (bool, int, float):
            number = float(value) if self._dtype.kind in "fV" else value
            value = np.asarray(value, self._dtype if np.can_cast(number, self._dtype) else None)
        array = np.asarray(value, order="C")
        if array.dtype != self._dtype or not (
            array.shape == self._shape
            or self._type.is_assignable_from(tff.types.TensorType(self._dtype, array.shape))
        ):
            found = f"{array.dtype}{list(array.shape)}"
            raise TypeError(_mismatch(self._key, self._type, found))
        arrays[self._key] = array.view(self._stored_dtype)

    def assemble(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        return arrays[self._key].view(self._dtype)


class _Text:
    """A tensor of strings in a type; stored are the bytes of JSON, its shape and its strings."""

    def __init__(self, tensor_type: tff.types.TensorType, path: tuple[str, ...]):
        self._type, self._key = tensor_type, _key(path)

    def flatten(self, value, arrays: dict[str, np.ndarray]) -> None:
        """Adds the strings, which are bytes or text."""
        array = np.asarray(value, object)
        texts = [text.encode() if isinstance(text, str) else text for text in array.flat]
        are_strings = all(isinstance(text, bytes) for text in texts)
        found = tff.types.TensorType(np.str_, array.shape)
        if not are_strings or not self._type.is_assignable_from(found):
            raise TypeError(_mismatch(self._key, self._type, repr(value)))
        stored = json.dumps([array.shape, [text.decode("latin-1") for text in texts]])
        arrays[self._key] = np.frombuffer(stored.encode(), np.uint8)

    def assemble(self, arrays: dict[str, np.ndarray]) -> "np.ndarray | bytes":
        """The strings as TensorFlow has them: an array of bytes, or the bytes of a scalar."""
        shape, texts = json.loads(arrays[self._key].tobytes())
        array = np.array([text.encode("latin-1") for text in texts], object).reshape(shape)
        return array if shape else array.item()


def _key(path) -> str:
    key = "/".join(path)
    # The one name that safetensors keeps for itself; `quote` makes no other key of this look.
    return "%5F_metadata__" if key == "__metadata__" else key


def _mismatch(key, expected, found) -> str:
    return f"Expected {expected} at '{key}', found {found}."


def _checksum(type_string: str, arrays: dict[str, np.ndarray]) -> str:
    checksum = zlib.crc32(type_string.encode())
    for key, array in sorted(arrays.items()):
        described = f"{key} {_dtype_name(array.dtype)} {array.shape}"
        checksum = zlib.crc32(described.encode(), checksum)
        checksum = zlib.crc32(array, checksum)
    return f"{checksum:08x}"


_dtype_name = functools.lru_cache(str)  # NumPy takes longer for it than `crc32` for a small array.

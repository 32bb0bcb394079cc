"""Converts values of any TFF structure of tensors to bytes, and back bit for bit.

`pack` writes the leaves one after the other, in the order of the type. A leaf is the bytes of the
array, preceded by its shape if the type does not fix it. `serialize` adds the type and a checksum,
for bytes that are stored on their own.
"""

import collections
import functools
import math
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.tracing.structures import container_of

_NUMBER = struct.Struct("<I")  # for a checksum, or the length of a type


def serialize(value: Any, type_signature: tff.types.Type) -> bytes:
    """Serializes `value` to bytes; equal values give equal bytes.

    Args:
        value: A value of `type_signature`. Containers may be all that TFF accepts (NamedTuples,
            mappings, sequences, attrs, `tff.structure.Struct`). Leaves may be NumPy arrays, TF
            tensors or Python scalars. Only Python scalars are converted to the leaf's data type.
        type_signature: A `tff.types.TensorType` of booleans, integers, floats or strings, or a
            nested `tff.types.StructType` of such tensors.

    Raises:
        TypeError: `value` is not of `type_signature`, or `type_signature` has other leaves.
    """
    kind = str(type_signature).encode()
    content = _NUMBER.pack(len(kind)) + kind + pack(value, type_signature)
    return _NUMBER.pack(zlib.crc32(content)) + content


def deserialize(buffer: bytes, type_signature: tff.types.Type) -> Any:
    """Restores a value that `serialize` wrote.

    Args:
        buffer: The bytes that `serialize` returned.
        type_signature: The type it was serialized with.

    Returns:
        The value in the Python containers of `type_signature`. A structure without a container
        becomes an `OrderedDict` if its elements are named, else a `tuple`. Leaves are writable
        NumPy arrays that share no memory with `buffer`.

    Raises:
        ForeignStateError: The bytes are a value of another type.
        CorruptStateError: The bytes are damaged.
        TypeError: `type_signature` is not supported; see `serialize`.
    """
    content = memoryview(buffer)[_NUMBER.size :]
    if not content or _NUMBER.pack(zlib.crc32(content)) != buffer[: _NUMBER.size]:
        raise CorruptStateError(
            f"The {len(buffer)} bytes are not a serialized {type_signature}, or they are damaged."
        )
    end = _NUMBER.size + _NUMBER.unpack_from(content)[0]
    stored, expected = str(content[_NUMBER.size : end], "utf-8"), str(type_signature)
    if stored != expected:
        raise ForeignStateError(
            f"The serialized value has another type.\nStored:   {stored}\nExpected: {expected}"
        )
    return unpack(content[end:], type_signature)


def pack(value: Any, type_signature: tff.types.Type) -> bytes:
    """Returns the bytes of the leaves of `value`; see `serialize`."""
    parts: list[bytes] = []
    _plan(type_signature).pack(value, parts)
    return b"".join(parts)


def unpack(buffer: bytes | memoryview, type_signature: tff.types.Type) -> Any:
    """Restores a value that `pack` wrote; see `deserialize`.

    Raises:
        CorruptStateError: The number of bytes does not fit `type_signature`.
    """
    try:
        value, end = _plan(type_signature).unpack(buffer, 0)
    except (ValueError, struct.error):
        end = None
    if end != len(buffer):
        raise CorruptStateError(f"The {len(buffer)} bytes are not a packed {type_signature}.")
    return value


# Cached, since inspecting a type takes longer than packing a small state.
@functools.lru_cache
def _plan(type_signature, key="") -> "_Tensor | _Structure | _Text":
    if isinstance(type_signature, tff.types.StructType):
        return _Structure(type_signature, key)
    kind = type_signature.dtype.kind if isinstance(type_signature, tff.types.TensorType) else None
    if kind not in tuple("biufVU"):  # V: bfloat16
        raise TypeError(
            "Expected tensors of booleans, integers, floats or strings, found "
            f"{type_signature} at '{key}'."
        )
    return _Text(type_signature, key) if kind == "U" else _Tensor(type_signature, key)


class _Structure:
    """A packer of a structure."""

    def __init__(self, struct_type: tff.types.StructType, key: str):
        names = tuple(tff.structure.name_list_with_nones(struct_type))
        if None in names and set(names) != {None}:
            raise TypeError(
                f"Expected the elements of '{key}' to be all named or all unnamed, since no Python "
                f"container holds both kinds; found {struct_type}."
            )
        self._type, self._key, self._names = struct_type, key, names
        self._parts = [
            _plan(element, f"{key}/{index if name is None else name}".lstrip("/"))
            for index, (name, element) in enumerate(tff.structure.iter_elements(struct_type))
        ]
        self._container = container_of(struct_type)

    def pack(self, value, parts: list[bytes]) -> None:
        for part, element in zip(self._parts, self._elements(value), strict=True):
            part.pack(element, parts)

    def unpack(self, buffer, start: int) -> tuple[Any, int]:
        """Returns the value that begins at `start`, and the position of its end."""
        elements = []
        for part in self._parts:
            element, start = part.unpack(buffer, start)
            elements.append(element)
        return self._container(elements), start

    def _elements(self, value) -> Iterable:
        """Returns the elements of `value` in the order of the type."""
        kind = type(value)
        if kind in (tuple, list) and len(value) == len(self._names):
            return value
        if getattr(kind, "_fields", None) == self._names:
            return value
        if kind in (dict, collections.OrderedDict) and tuple(value) == self._names:
            return value.values()
        try:
            found = tff.structure.from_container(value)
        except TypeError as e:
            raise TypeError(_mismatch(self._key, self._type, f"a {kind.__name__}")) from e
        names = tff.structure.name_list_with_nones(found)
        named = any(name is not None for name in names)
        if len(names) != len(self._names) or (named and set(names) != set(self._names)):
            raise TypeError(_mismatch(self._key, self._type, f"elements {names}"))
        # Named elements are taken by name, since the order of a mapping does not matter.
        return [found[name] for name in self._names] if named else found


class _Tensor:
    """A packer of a tensor: its bytes, preceded by its int64 shape if the type does not fix it."""

    def __init__(self, tensor_type: tff.types.TensorType, key: str):
        self._type, self._key = tensor_type, key
        self._dtype, shape = tensor_type.dtype, tensor_type.shape
        self._rank = None if shape is None else len(shape)
        self._shape = None if shape is None or None in shape else tuple(shape)

    def pack(self, value, parts: list[bytes]) -> None:
        if type(value) in (bool, int, float):
            number = float(value) if self._dtype.kind in "fV" else value
            value = np.asarray(value, self._dtype if np.can_cast(number, self._dtype) else None)
        array = np.asarray(value)
        if array.dtype != self._dtype or not self._takes(array.shape):
            found = f"{array.dtype}{list(array.shape)}"
            raise TypeError(_mismatch(self._key, self._type, found))
        if self._shape is None:
            parts.append(_packed_shape(array.shape))
        parts.append(array.tobytes())

    def unpack(self, buffer, start: int) -> tuple[np.ndarray, int]:
        shape = self._shape
        if shape is None:
            shape, start = _unpacked_shape(buffer, start)
        count = math.prod(shape)
        array = np.frombuffer(buffer, self._dtype, count, start).reshape(shape).copy()
        return array, start + array.nbytes

    def _takes(self, shape) -> bool:
        return shape == self._shape or self._type.is_assignable_from(
            tff.types.TensorType(self._dtype, shape)
        )


class _Text:
    """A packer of a tensor of strings: its shape, the lengths of the strings, and the strings."""

    def __init__(self, tensor_type: tff.types.TensorType, key: str):
        self._type, self._key = tensor_type, key

    def pack(self, value, parts: list[bytes]) -> None:
        array = np.asarray(value, object)
        texts = [text.encode() if isinstance(text, str) else text for text in array.flat]
        found = tff.types.TensorType(np.str_, array.shape)
        are_strings = all(isinstance(text, bytes) for text in texts)
        if not are_strings or not self._type.is_assignable_from(found):
            raise TypeError(_mismatch(self._key, self._type, repr(value)))
        parts += [_packed_shape(array.shape), np.array(list(map(len, texts)), "<i8").tobytes()]
        parts += texts

    def unpack(self, buffer, start: int) -> "tuple[np.ndarray | bytes, int]":
        """Returns an array of bytes, or the bytes of a scalar, and the position of its end."""
        shape, start = _unpacked_shape(buffer, start)
        lengths = np.frombuffer(buffer, "<i8", math.prod(shape), start)
        ends = start + lengths.nbytes + np.cumsum(lengths)
        texts = [
            bytes(buffer[end - length : end]) for length, end in zip(lengths, ends, strict=True)
        ]
        array = np.array(texts, object).reshape(shape)
        end = int(ends[-1]) if len(ends) else start
        return (array if shape else array.item()), end


def _packed_shape(shape) -> bytes:
    return struct.pack(f"<{len(shape) + 1}q", len(shape), *shape)


def _unpacked_shape(buffer, start) -> tuple[tuple[int, ...], int]:
    (rank,) = struct.unpack_from("<q", buffer, start)
    shape = struct.unpack_from(f"<{rank}q", buffer, start + 8)
    return shape, start + 8 * (rank + 1)


def _mismatch(key, expected, found) -> str:
    return f"Expected {expected} at '{key}', found {found}."

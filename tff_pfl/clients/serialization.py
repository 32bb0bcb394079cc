"""Values of any TFF structure of tensors as bytes, and back bit for bit.

The bytes are a safetensors file: every leaf under its path (`model/dense/kernel`, elements without
a name by index), the type signature and a checksum of the leaves in the metadata.
"""

import json
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors
import safetensors.numpy
import tensorflow_federated as tff

# One entry: safetensors writes several in no fixed order, and equal values shall have equal bytes.
_METADATA_KEY = "tff_pfl"


class ForeignStateError(ValueError):
    """Stored data is sound, but of another type or made by something else."""


class CorruptStateError(ValueError):
    """Stored data is damaged."""


def serialize(value: Any, type_signature: tff.types.Type) -> bytes:
    """Serializes `value` to bytes; equal values give equal bytes.

    Args:
        value: A value of `type_signature`. Containers are what TFF accepts (NamedTuples, mappings,
            sequences, attrs, `tff.structure.Struct`), leaves NumPy arrays, TF tensors or Python
            scalars. Only Python scalars are converted to the leaf's data type.
        type_signature: A `tff.types.TensorType` of booleans, integers or floats, or any nested
            `tff.types.StructType` of them.

    Raises:
        TypeError: If `value` is not of `type_signature`, or `type_signature` is not as above.
    """
    arrays = dict(_leaves(value, type_signature, ()))
    metadata = {_METADATA_KEY: f"{_checksum(str(type_signature), arrays)} {type_signature}"}
    return safetensors.numpy.save(arrays, metadata)


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
    """
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
    if stored_type != str(type_signature):
        raise ForeignStateError(
            "The serialized value has another type.\n"
            f"Stored:   {stored_type}\n"
            f"Expected: {type_signature}"
        )
    struct = _assemble(arrays, type_signature, ())
    return tff.types.type_to_py_container(struct, type_signature)


def _leaves(value, type_signature, path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the key and the array, as it is stored, of every leaf of `value`."""
    if not isinstance(type_signature, tff.types.StructType):
        yield _key(path), _to_stored(value, type_signature, path)
        return
    if not isinstance(value, tff.structure.Struct):
        try:
            value = tff.structure.from_container(value)
        except TypeError as e:
            raise TypeError(_mismatch(path, type_signature, f"a {type(value).__name__}")) from e
    names = tff.structure.name_list_with_nones(value)
    expected_names = tff.structure.name_list_with_nones(type_signature)
    named = any(name is not None for name in names)
    if len(names) != len(expected_names) or (named and set(names) != set(expected_names)):
        raise TypeError(_mismatch(path, type_signature, f"elements {names}"))
    # By name where there are names: the order of a mapping is not part of its value.
    elements = dict(tff.structure.iter_elements(value)) if named else value
    for index, (name, part) in enumerate(_parts(type_signature, path)):
        yield from _leaves(elements[name if named else index], type_signature[index], (*path, part))


def _assemble(arrays, type_signature, path) -> Any:
    """Builds the `Struct`, or the tensor, of the `arrays` under `path`."""
    if isinstance(type_signature, tff.types.StructType):
        return tff.structure.Struct(
            (name, _assemble(arrays, type_signature[index], (*path, part)))
            for index, (name, part) in enumerate(_parts(type_signature, path))
        )
    return arrays[_key(path)].view(type_signature.dtype)


def _parts(struct_type, path) -> list[tuple[Any, str]]:
    """The name of each element and its part of a key, unique in the struct and without '/'."""
    names = tff.structure.name_list_with_nones(struct_type)
    if None in names and set(names) != {None}:
        raise TypeError(
            f"Expected the elements of '{_key(path)}' to be all named or all unnamed, as no Python "
            f"container holds both; found {struct_type}."
        )
    return [
        (name, str(index) if name is None else quote(name, safe=""))
        for index, name in enumerate(names)
    ]


def _key(path) -> str:
    key = "/".join(path)
    # The one name that safetensors keeps for itself; `quote` makes no other key of this look.
    return "%5F_metadata__" if key == "__metadata__" else key


def _to_stored(value, leaf_type, path) -> np.ndarray:
    """Checks a leaf against its type; returns a contiguous array of a type safetensors has."""
    if not isinstance(leaf_type, tff.types.TensorType) or leaf_type.dtype.kind not in "biufV":
        raise TypeError(
            "Expected tensors of booleans, integers or floats, "
            f"found {leaf_type} at '{_key(path)}'."
        )
    dtype = leaf_type.dtype
    if type(value) in (bool, int, float):
        fits = np.can_cast(float(value) if dtype.kind in "fV" else value, dtype)
        value = np.asarray(value, dtype if fits else None)
    array = np.asarray(value, order="C")
    if array.dtype.kind not in "biufV" or not leaf_type.is_assignable_from(
        tff.types.TensorType(array.dtype, array.shape)
    ):
        raise TypeError(_mismatch(path, leaf_type, f"{array.dtype}{list(array.shape)}"))
    # NumPy knows bfloat16 as an opaque type, safetensors' NumPy half not at all.
    return array.view(f"u{dtype.itemsize}") if dtype.kind == "V" else array


def _mismatch(path, expected, found) -> str:
    return f"Expected {expected} at '{_key(path)}', found {found}."


def _checksum(type_string: str, arrays: dict[str, np.ndarray]) -> str:
    checksum = zlib.crc32(type_string.encode())
    for key, array in sorted(arrays.items()):
        checksum = zlib.crc32(f"{key} {array.dtype} {array.shape}".encode(), checksum)
        checksum = zlib.crc32(array, checksum)
    return f"{checksum:08x}"

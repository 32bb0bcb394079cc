"""Converts between the structures of TFF's types and Python's containers."""

import collections
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


def normalized(structure: Any, convert: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    """Returns a structure whose mappings are `OrderedDict`s in sorted order, as in `tf.nest`.

    Args:
        structure: Mappings and tuples of leaves. All else is a leaf, also a list.
        convert: A function that is applied to each leaf.
    """
    if isinstance(structure, Mapping):
        return collections.OrderedDict(
            (name, normalized(structure[name], convert)) for name in sorted(structure)
        )
    if isinstance(structure, tuple):
        elements = [normalized(element, convert) for element in structure]
        return type(structure)(*elements) if hasattr(structure, "_fields") else tuple(elements)
    return convert(structure)


def mapped_type(
    function: Callable[[tff.types.TensorType], tff.types.Type], type_signature: tff.types.Type
) -> tff.types.Type:
    """Returns a type with the same containers, with a function applied to each tensor's type."""
    if not isinstance(type_signature, tff.types.StructType):
        return function(type_signature)
    elements = [
        (name, mapped_type(function, element))
        for name, element in tff.structure.iter_elements(type_signature)
    ]
    container = type_signature.python_container
    if container is None:
        return tff.types.StructType(elements)
    return tff.types.StructWithPythonType(elements, container)


def is_empty(type_signature: tff.types.Type) -> bool:
    """Returns whether a type holds no tensor."""
    return tff.types.count(type_signature, lambda t: isinstance(t, tff.types.TensorType)) == 0


def type_of(value) -> tff.types.Type:
    """Returns the TFF type of a structure of tensors."""
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, value)
    return tff.types.tensorflow_to_type(specs)


def empty_value(type_signature: tff.types.StructType):
    """Returns the value of a type that holds no tensor: its empty containers."""
    elements = [
        (name, empty_value(element))
        for name, element in tff.structure.iter_elements(type_signature)
    ]
    return tff.types.type_to_py_container(tff.structure.Struct(elements), type_signature)


def type_of_row(rows_type: tff.types.Type) -> tff.types.Type:
    """Returns the type of one row of tensors with a leading axis of rows."""
    return mapped_type(lambda rows: tff.types.TensorType(rows.dtype, rows.shape[1:]), rows_type)


def type_of_rows(row_type: tff.types.Type) -> tff.types.Type:
    """Returns the type of tensors with an open number of rows, of which each has the given type."""
    return mapped_type(lambda row: tff.types.TensorType(row.dtype, (None, *row.shape)), row_type)


@functools.lru_cache
def names_of(struct_type: tff.types.StructType) -> tuple[str | None, ...]:
    """Returns the names of the elements of a structure."""
    return tuple(tff.structure.name_list_with_nones(struct_type))


@functools.lru_cache
def container_of(struct_type: tff.types.StructType) -> Callable[[list], Any]:
    """Returns a function that packs the elements of a structure into the type's container.

    The function is equivalent to `tff.types.type_to_py_container` for one structure, but inspects
    the type only once. If the type has no container, it makes an `OrderedDict` of named elements
    and a `tuple` of others.
    """
    names = names_of(struct_type)
    named = any(name is not None for name in names)
    container = struct_type.python_container or (collections.OrderedDict if named else tuple)
    if container in (tuple, list) and not named:
        return container
    if container in (dict, collections.OrderedDict) and named:
        return lambda elements: container(zip(names, elements, strict=True))
    if getattr(container, "_fields", None) == names:
        return lambda elements: container(*elements)
    return lambda elements: tff.types.type_to_py_container(
        tff.structure.Struct(zip(names, elements, strict=True)), struct_type
    )


def tensor_sizes(type_signature: tff.types.Type) -> dict[str, int]:
    """Returns the bytes of each tensor in a type, by its path; 0 if a dimension is unknown."""
    return {
        path: tensor.dtype.itemsize * _num_elements(tensor)
        for path, tensor in _tensors(type_signature, ())
    }


def _tensors(type_signature, path) -> Iterator[tuple[str, tff.types.TensorType]]:
    if isinstance(type_signature, tff.types.StructType):
        for i, (name, element) in enumerate(tff.structure.iter_elements(type_signature)):
            yield from _tensors(element, (*path, name or str(i)))
    elif isinstance(type_signature, tff.types.TensorType):
        yield "/".join(path), type_signature


def _num_elements(tensor) -> int:
    return 0 if tensor.shape is None else math.prod(length or 0 for length in tensor.shape)


def elements_of(value: Any, struct_type: tff.types.StructType) -> Sequence:
    """Returns the elements of a structure in the order of its type.

    Elements are matched by name if all of the type's names are given, otherwise by position.

    Raises:
        TypeError: `value` is not a structure, or has another number of elements than its type.
    """
    given = None
    if isinstance(value, (tuple, list)):
        elements = value
        given = getattr(value, "_fields", None)
    elif isinstance(value, Mapping):
        elements, given = tuple(value.values()), tuple(value)
    else:
        try:
            struct = tff.structure.from_container(value)
        except TypeError:
            raise TypeError(
                f"Expected a structure of type {struct_type}, found {type(value)}."
            ) from None
        elements = tuple(struct)
        given = tuple(tff.structure.name_list_with_nones(struct))
    if len(elements) != len(struct_type):
        raise TypeError(
            f"Expected a structure of {len(struct_type)} elements, of type {struct_type}, found "
            f"{len(elements)} elements."
        )
    if given is None:
        return elements
    names = names_of(struct_type)
    if given != names and None not in names and set(given) == set(names):
        return [elements[given.index(name)] for name in names]
    return elements

"""Python's containers for the structures of TFF's types."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff


def container_of(struct_type: tff.types.StructType) -> Callable[[list], Any]:
    """A function from the elements of a structure to TFF's container for it.

    It does what `tff.types.type_to_py_container` does with one structure, but looks into the type
    only once. Without a container in the type it is an `OrderedDict` if elements are named, else a
    `tuple`.
    """
    names = tuple(tff.structure.name_list_with_nones(struct_type))
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

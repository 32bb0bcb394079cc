"""How values of Python lie in lists of tensors."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import values


class ResidentArray(np.ndarray):
    """A read-only array that knows the tensor whose memory it shows.

    Given to a computation, the tensor is taken, and nothing is copied. Arrays that are made of it
    know no tensor.
    """

    tensor: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a value lies in a list of tensors; arguments of equal layouts share a graph.

    Attributes:
        kind: `leaf`, `struct`, `clients` (with a value each) or `function`.
        parts: Of a struct, its layouts; of clients, the class of each leaf, in a result those of
            each shard, which may be others on another kind of device; of a function, its building
            block.
    """

    kind: str
    parts: tuple = ()

    def specs(self, type_spec, num_shards: int) -> list[tf.TensorSpec]:
        """The specifications of the tensors."""
        if isinstance(type_spec, tff.types.FederatedType):
            type_spec = type_spec.member
        match self.kind:
            case "leaf":
                return [values.tensor_spec(type_spec)]
            case "struct":
                elements = zip(self.parts, type_spec, strict=True)
                return [spec for part, kind in elements for spec in part.specs(kind, num_shards)]
            case "clients":
                leaves = zip(self.parts, values.leaf_types(type_spec), strict=True)
                return [spec for leaf, kind in leaves for spec in leaf.specs(kind)] * num_shards
        return []

    def build(self, type_spec, tensors: Iterator[tf.Tensor], lowering) -> Any:
        """The value in a graph that is being built."""
        if isinstance(type_spec, tff.types.FederatedType):
            if type_spec.placement is tff.CLIENTS and type_spec.all_equal:
                value = self.build(type_spec.member, tensors, lowering)
                return lowering.shared(value, type_spec.member)
            type_spec = type_spec.member
        match self.kind:
            case "leaf":
                return next(tensors)
            case "struct":
                elements = zip(self.parts, type_spec, strict=True)
                return tuple(part.build(kind, tensors, lowering) for part, kind in elements)
            case "clients":
                shards = lowering.no_values().shards
                leaves = [[leaf.take(tensors) for leaf in self.parts] for _ in shards]
                return lowering.no_values().with_leaves(type_spec, leaves)
        return lowering.evaluate(self.parts[0], {})

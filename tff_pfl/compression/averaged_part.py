"""Finds the part of an upload that is averaged, which can be compressed."""

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Aggregator, means
from tff_pfl.compression.compressors import Compressor
from tff_pfl.local import trees
from tff_pfl.templates import Algorithm, Exchange
from tff_pfl.templates.errors import AggregatorError
from tff_pfl.tracing.trace import trace


@dataclasses.dataclass(frozen=True)
class AveragedPart:
    """The part of an exchange's uploads that is averaged.

    Attributes:
        owner: The name of the exchange's uploads in errors.
        field: The field of the upload, or `None` for the whole upload.
        specs: The part's structure of `tf.TensorSpec`.
        present: The exchange's aggregator.
    """

    owner: str
    field: str | None
    specs: Any
    present: Aggregator

    @property
    def size(self) -> int:
        """The number of scalars in the part."""
        return sum(spec.shape.num_elements() for spec in tf.nest.flatten(self.specs))

    def vector(self, upload: Any) -> tf.Tensor:
        """Returns the part of an upload as float32 `[size]`.

        Raises:
            AggregatorError: The part does not have the type that the exchange declares.
        """
        part = upload if self.field is None else getattr(upload, self.field)
        part = tf.nest.map_structure(tf.convert_to_tensor, part)
        found, expected = (
            [(leaf.dtype, leaf.shape.as_list()) for leaf in tf.nest.flatten(tensors)]
            for tensors in (part, self.specs)
        )
        if found != expected:
            raise AggregatorError(
                f"{self.owner}: the averaged part has the type\n  {trees.specs(part)}\nbut "
                f"Exchange.averaged has\n  {self.specs}"
            )
        return trees.to_vector(tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float32), part))

    def replaced(self, upload: Any, message: Any) -> Any:
        """Returns an upload in which a message replaces the part."""
        return message if self.field is None else upload._replace(**{self.field: message})

    def aggregator(self, compressor: Compressor) -> Aggregator:
        """Returns the aggregator of uploads whose part is a message of the compressor."""

        def decode(message):
            return trees.from_vector(compressor.decode(message, self.size), self.specs)

        return means.decoding(self.present, decode)


def averaged_part(algorithm: Algorithm, exchange: Exchange) -> AveragedPart:
    """Finds the averaged part of the uploads of an exchange.

    Args:
        algorithm: The algorithm.
        exchange: An exchange of the algorithm that has an aggregator.

    Raises:
        AggregatorError: The averaged part is unknown, or the aggregator is not a plain mean.
    """
    owner = f"Uploads of {algorithm.name} (exchange {exchange.name!r})"
    aggregator = exchange.aggregator
    fields = means.averaged_parts(aggregator)
    if len(fields) != 1:
        raise AggregatorError(
            f"{owner} cannot be compressed: the uploads, or one of their fields, must be averaged "
            f"by a plain mean, but the aggregator is {type(aggregator).__name__}."
        )
    part_of = exchange.averaged
    if part_of is None:
        raise AggregatorError(
            f"{owner} cannot be compressed: Exchange.averaged is None. Set it to a function that "
            "returns the part of the server state that uploads change."
        )
    averaged = trace(f"{owner}: averaged", lambda: part_of(algorithm.server_init(0)))
    specs = tff.types.type_to_tf_tensor_specs(averaged.type_signature.result)
    return AveragedPart(owner, fields[0], specs, aggregator)

"""The inputs of a model: their specs, and the default `preprocess`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.tracing.structures import normalized

if TYPE_CHECKING:
    from tff_pfl.models.model import Model


def input_specs(shape: Any, dtype: Any, num_rows: int | None = None) -> Any:
    """Returns the `tf.TensorSpec` of a batch of inputs, or the structure of the specs.

    Args:
        shape: The shape of one input, a sequence of integers; or a structure (mappings and tuples)
            of shapes.
        dtype: The data type of all inputs, or the structure of their data types.
        num_rows: The number of rows, or `None` if it is open.

    Raises:
        ValueError: A dimension of a shape is open.
    """
    return _specs(normalized(shape), normalized(dtype), num_rows, "x")


def _specs(shape, dtype, num_rows, name):
    if is_shape(shape):
        if None in shape:
            raise ValueError(
                f"input_shape must be the shape of one input, in whole numbers, got {tuple(shape)}."
                " Pad sequences to one length, and leave out the axis of the batch."
            )
        return tf.TensorSpec([num_rows, *shape], dtype, name)
    names = list(shape) if isinstance(shape, dict) else range(len(shape))
    is_shared = not tree.is_nested(dtype)
    specs = [
        _specs(shape[key], dtype if is_shared else dtype[key], num_rows, f"{name}_{key}")
        for key in names
    ]
    if isinstance(shape, dict):
        return type(shape)(zip(names, specs, strict=True))
    return type(shape)(*specs) if hasattr(shape, "_fields") else tuple(specs)


def is_shape(value) -> bool:
    """Returns whether a value is a shape, not a structure of shapes.

    Raises:
        TypeError: It is a number.
    """
    if isinstance(value, dict):
        return False
    if hasattr(value, "__index__"):
        raise TypeError(f"input_shape must be a tuple, such as ({value},), got {value!r}.")
    return all(size is None or hasattr(size, "__index__") for size in value)


def check_inputs(model: "Model", inputs_type: tff.types.Type) -> None:
    """Raises a `ValueError` if a model takes inputs of other shapes than those of the data.

    Args:
        model: The model.
        inputs_type: The TFF type of a client's inputs.
    """
    if model.inputs is None:
        return
    taken, found = map(_shapes, (model.inputs, tff.types.type_to_tf_tensor_specs(inputs_type)))
    fits = taken.keys() == found.keys() and all(
        taken[path].is_compatible_with(found[path]) for path in taken
    )
    if not fits:
        raise ValueError(
            f"Model {model.name!r} has input_shape={_text(taken)}, but an input of the data has "
            f"the shape {_text(found)}. Pass input_shape=dataset.image_shape."
        )


def _shapes(specs) -> dict[str, tf.TensorShape]:
    """Returns the shape of a row by the path of its tensor; the path of a single one is ""."""
    leaves = tree.flatten_with_path(specs)
    return {"/".join(map(str, path)): spec.shape[1:] for path, spec in leaves}


def _text(shapes) -> str:
    if "" in shapes:
        return str(shapes[""])
    return f"{{{', '.join(f'{path!r}: {shape}' for path, shape in shapes.items())}}}"


def preprocessed_zeros(preprocess: Callable[[Any], Any], specs: Any) -> Any:
    """Applies `preprocess` to zeros of the given specs.

    Raises:
        ValueError: `preprocess` fails. The message has the type of the inputs.
    """
    zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
    try:
        return preprocess(zeros)
    except Exception as error:
        given = tff.types.tensorflow_to_type(specs)
        raise ValueError(
            f"preprocess fails on a batch of type {given}, which follows from input_shape, the "
            "shape of one input as stored, before preprocess: "
            f"{type(error).__name__}: {error}"
        ) from error


def as_numbers(inputs: Any) -> Any:
    """Casts inputs to float32, except integers of 32 or 64 bits, which float32 would round."""
    return tf.nest.map_structure(_as_number, inputs)


def _as_number(x):
    if x.dtype.is_integer and x.dtype.size > 2:
        return x
    return tf.cast(x, tf.float32)

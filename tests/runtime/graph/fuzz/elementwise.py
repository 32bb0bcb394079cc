"""Element-wise operations: all that parallel-for has a rule for, with each of their types."""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tests.runtime.graph.fuzz import operands
from tests.runtime.graph.fuzz.catalogue import Family
from tff_pfl.runtime.graph import internals

family = Family("element-wise")

# Where the ordinary numbers are not in the domain, or the result is not continuous.
_BETWEEN = {
    "Acos": (-0.9, 0.9),
    "Acosh": (1.1, 3),
    "Asin": (-0.9, 0.9),
    "Atanh": (-0.9, 0.9),
    "BesselY0": (0.2, 3),
    "BesselY1": (0.2, 3),
    "BesselK0": (0.2, 3),
    "BesselK0e": (0.2, 3),
    "BesselK1": (0.2, 3),
    "BesselK1e": (0.2, 3),
    "Digamma": (0.2, 3),
    "Erfinv": (-0.9, 0.9),
    "Igamma": (0.2, 3),
    "IgammaGradA": (0.2, 3),
    "Igammac": (0.2, 3),
    "Lgamma": (0.2, 3),
    "Log": (0.2, 3),
    "Log1p": (-0.5, 3),
    "Mod": (0.7, 9),
    "Ndtri": (0.1, 0.9),
    "FloorMod": (0.7, 9),
    "Polygamma": (1, 3),
    "Pow": (0.2, 3),
    "Rsqrt": (0.2, 3),
    "RsqrtGrad": (0.2, 3),
    "Sqrt": (0.2, 3),
    "SqrtGrad": (0.2, 3),
    "TruncateMod": (0.7, 9),
    "Xlog1py": (0.2, 3),
    "Xlogy": (0.2, 3),
    "Zeta": (1.5, 4),
}
# At 0, XLA takes the gradient from the other side.
_BENT_AT_0 = ("Elu", "EluGrad", "Selu", "SeluGrad")
# Integers of these are from 1 on: by zero cannot be divided, and shifts by less than none are not
# defined.
_POSITIVE_INTEGERS = (
    "Div",
    "FloorDiv",
    "FloorMod",
    "LeftShift",
    "Mod",
    "Pow",
    "RealDiv",
    "RightShift",
    "TruncateDiv",
    "TruncateMod",
)
_TYPES = (np.float32, np.float64, np.int32, np.int64, np.uint8, np.complex64, np.bool_, np.float16)
_BOOLEAN = {tf.bool.as_datatype_enum}
_SHAPES = {
    1: [[("n", 3)], [()]],
    2: [[("n", 3), ("n", 3)], [(2, 3), (3,)], [(), (2, 3)], [("n", 1), (1, 3)], [(), ()]],
    3: [[("n", 3)] * 3, [(2, 1), (3,), ()]],
}


def _draw(name, dtype, shape):
    if dtype is np.bool_:
        return operands.booleans(*shape)
    if np.issubdtype(dtype, np.integer):
        return operands.integers(1 if name in _POSITIVE_INTEGERS else 0, 4, *shape, dtype=dtype)
    if np.issubdtype(dtype, np.complexfloating):
        return operands.complexes(*shape, dtype=dtype)
    if name in _BETWEEN:
        return operands.between(*_BETWEEN[name], *shape, dtype=dtype)
    if name in _BENT_AT_0:
        return operands.nonzero(*shape, dtype=dtype)
    return operands.real(*shape, dtype=dtype)


def _same_types(definition):
    """The names of the inputs, if they are of one type that is the operation's only attribute."""
    attributes = {
        argument.type_attr for argument in definition.input_arg if not argument.number_attr
    }
    if not definition.attr and {argument.type for argument in definition.input_arg} == _BOOLEAN:
        return [argument.name for argument in definition.input_arg], [np.bool_]
    if len(attributes) != 1 or "" in attributes:
        return None, None
    (attribute,) = attributes
    (found,) = (a for a in definition.attr if a.name == attribute)
    allowed = {tf.dtypes.as_dtype(t) for t in found.allowed_values.list.type}
    others = [a for a in definition.attr if a.name != attribute and not a.HasField("default_value")]
    if others or not 1 <= len(definition.input_arg) <= 3 or len(definition.output_arg) != 1:
        return None, None
    types = [t for t in _TYPES if not allowed or tf.dtypes.as_dtype(t) in allowed]
    return [argument.name for argument in definition.input_arg], types


def _add(name):
    definition = op_def_registry.get(name)
    names, types = (None, None) if definition is None else _same_types(definition)
    if names is None:
        return
    operation = getattr(tf.raw_ops, name, None)
    if operation is None:
        return

    def call(*tensors):
        return operation(**dict(zip(names, tensors, strict=True)))

    family.add_variants(
        name,
        call,
        [
            [_draw(name, dtype, shape) for shape in shapes]
            for dtype in types
            for shapes in _SHAPES[len(names)]
        ],
    )


# Of the operations with inputs of one type, these are not element-wise.
_OTHERS = (
    "BiasAdd",
    "BiasAddGrad",
    "BiasAddV1",
    "Cholesky",
    "Cross",
    "Diag",
    "DiagPart",
    "FFT",
    "FFT2D",
    "FFT3D",
    "IFFT",
    "IFFT2D",
    "IFFT3D",
    "L2Loss",
    "LogSoftmax",
    "MatMul",
    "MatrixBandPart",
    "MatrixDiag",
    "MatrixDiagPart",
    "MatrixInverse",
    "MatrixSetDiag",
    "MatrixSolve",
    "MatrixTriangularSolve",
    "BatchMatMul",
    "BatchMatMulV2",
    "SoftmaxCrossEntropyWithLogits",
    "Softmax",
    "XlaSharding",
)

for _name in sorted(internals.pfor_rules):
    if _name not in _OTHERS:
        _add(_name)

_PAIR = [operands.real("n", 3), operands.real("n", 3)]
family.add("complex", tf.complex, *_PAIR)
for _name in ("real", "imag", "abs", "angle", "conj"):
    family.add(f"{_name} of complex", getattr(tf.math, _name), operands.complexes("n", 3))
family.add("clip by numbers", lambda x: tf.clip_by_value(x, -0.5, 0.7), operands.real("n", 3))
family.add("clip", tf.clip_by_value, *_PAIR, operands.between(1, 2, "n", 3))
family.add("clip by norm", lambda x: tf.clip_by_norm(x, 0.7), operands.real("n", 3))
family.add("where", tf.where, operands.booleans("n", 3), *_PAIR)
family.add("where of a scalar", tf.where, operands.booleans(), *_PAIR)
family.add(
    "Select of rows",
    lambda c, x, y: tf.raw_ops.Select(condition=c, x=x, y=y),
    operands.booleans(2),
    operands.real(2, 3),
    operands.real(2, 3),
)
family.add("betainc", tf.math.betainc, *[operands.between(0.2, 0.9, "n", 3)] * 3)
for _from, _to in (
    (operands.real("n", 3), tf.int32),
    (operands.real("n", 3), tf.bool),
    (operands.real("n", 3), tf.float16),
    (operands.real("n", 3), tf.complex64),
    (operands.integers(0, 300, "n", 3), tf.uint8),
    (operands.booleans("n", 3), tf.float32),
    (operands.complexes("n", 3), tf.complex128),
):
    family.add(
        f"cast of {len(list(family))} to {_to.name}", lambda x, to=_to: tf.cast(x, to), _from
    )
family.add("add_n", lambda x, y: tf.add_n([x, y, x]), *_PAIR)
family.add("check numerics", lambda x: tf.debugging.check_numerics(x, "no"), operands.real("n", 3))

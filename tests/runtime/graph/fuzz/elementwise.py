"""Element-wise operations for which parallel-for has a rule, with each of their types."""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tests.runtime.graph.fuzz.catalogue import Operation, family
from tests.runtime.graph.fuzz.operands import between, booleans, complexes, integers, nonzero, real
from tff_pfl.runtime.graph import internals

# Intervals for operations that are undefined or discontinuous at ordinary numbers.
_DOMAINS = {
    (-0.9, 0.9): "Acos Asin Atanh Erfinv",
    (1.1, 3): "Acosh",
    (0.2, 3): "BesselY0 BesselY1 BesselK0 BesselK0e BesselK1 BesselK1e Digamma Igamma IgammaGradA "
    "Igammac Lgamma Log Pow Rsqrt RsqrtGrad Sqrt SqrtGrad Xlog1py Xlogy",
    (-0.5, 3): "Log1p",
    (0.7, 9): "Mod FloorMod TruncateMod",
    (0.1, 0.9): "Ndtri",
    (1, 3): "Polygamma",
    (1.5, 4): "Zeta",
}
_BETWEEN = {name: ends for ends, names in _DOMAINS.items() for name in names.split()}
# At 0, XLA uses the gradient of the other side.
_BENT_AT_0 = ("Elu", "EluGrad", "Selu", "SeluGrad")
# These operations get integers from 1, since divisions by zero and negative shifts are undefined.
_POSITIVE_INTEGERS = (
    *("Div", "FloorDiv", "RealDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod", "Pow"),
    *("LeftShift", "RightShift"),
)
# These operations search in sorted rows, and may find anything in others.
_OF_SORTED = ("LowerBound", "UpperBound")
_TYPES = (np.float32, np.float64, np.int32, np.int64, np.uint8, np.complex64, np.bool_, np.float16)
_BOOLEAN = {tf.bool.as_datatype_enum}
_SHAPES = {
    1: [[("n", 3)], [()]],
    2: [[("n", 3), ("n", 3)], [(2, 3), (3,)], [(), (2, 3)], [("n", 1), (1, 3)], [(), ()]],
    3: [[("n", 3)] * 3, [(2, 1), (3,), ()]],
}


def _draw(name, dtype, shape):
    if dtype is np.bool_:
        return booleans(*shape)
    if np.issubdtype(dtype, np.integer):
        return integers(1 if name in _POSITIVE_INTEGERS else 0, 4, *shape, dtype=dtype)
    if np.issubdtype(dtype, np.complexfloating):
        return complexes(*shape, dtype=dtype)
    if name in _BETWEEN:
        return between(*_BETWEEN[name], *shape, dtype=dtype)
    if name in _BENT_AT_0:
        return nonzero(*shape, dtype=dtype)
    return real(*shape, dtype=dtype)


def _same_types(definition):
    """Returns the inputs' names and types, if one type is the operation's only attribute."""
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


def _operation(name):
    """Returns the operation of this name, or `None` if its inputs have several types."""
    definition, function = op_def_registry.get(name), getattr(tf.raw_ops, name, None)
    names, types = (None, None) if definition is None else _same_types(definition)
    if names is None or function is None:
        return None

    def call(*tensors):
        if name in _OF_SORTED:
            tensors = [tf.sort(tensors[0]), *tensors[1:]]
        return function(**dict(zip(names, tensors, strict=True)))

    variants = [
        [_draw(name, dtype, shape) for shape in shapes]
        for dtype in types
        for shapes in _SHAPES[len(names)]
    ]
    return Operation(f"element-wise/{name}", "element-wise", call, variants)


# Operations with inputs of one type that are not element-wise.
_OTHERS = (
    *("BiasAdd", "BiasAddGrad", "BiasAddV1", "Cholesky", "Cross", "Diag", "DiagPart", "FFT"),
    *("FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D", "L2Loss", "LogSoftmax", "MatMul"),
    *("MatrixBandPart", "MatrixDiag", "MatrixDiagPart", "MatrixInverse", "MatrixSetDiag"),
    *("MatrixSolve", "MatrixTriangularSolve", "BatchMatMul", "BatchMatMulV2"),
    *("SoftmaxCrossEntropyWithLogits", "Softmax", "XlaSharding"),
)
_FOUND = [_operation(name) for name in sorted(internals.pfor_rules) if name not in _OTHERS]
_REAL, _COMPLEX, _BOOLEANS = real("n", 3), complexes("n", 3), booleans("n", 3)

operations = [operation for operation in _FOUND if operation] + family(
    "element-wise",
    {
        "tf.complex(x, y)": [_REAL, _REAL],
        **{
            f"tf.math.{name}(x) # of complex": [_COMPLEX]
            for name in ("real", "imag", "abs", "angle", "conj")
        },
        "tf.clip_by_value(x, -0.5, 0.7)": [_REAL],
        "tf.clip_by_value(x, y, z)": [_REAL, _REAL, between(1, 2, "n", 3)],
        "tf.clip_by_norm(x, 0.7)": [_REAL],
        "tf.where(x, y, z)": [_BOOLEANS, _REAL, _REAL],
        "tf.where(x, y, z) # of a scalar": [booleans(), _REAL, _REAL],
        "tf.raw_ops.Select(condition=x, x=y, y=z)": [booleans(2), real(2, 3), real(2, 3)],
        "tf.math.betainc(x, y, z)": [between(0.2, 0.9, "n", 3)] * 3,
        **{
            f"tf.cast(x, tf.{dtype}) # of reals": [_REAL]
            for dtype in ("int32", "bool", "float16", "complex64")
        },
        "tf.cast(x, tf.uint8)": [integers(0, 300, "n", 3)],
        "tf.cast(x, tf.float32)": [_BOOLEANS],
        "tf.cast(x, tf.complex128)": [_COMPLEX],
        "tf.add_n([x, y, x])": [_REAL, _REAL],
        "tf.debugging.check_numerics(x, 'no')": [_REAL],
    },
)

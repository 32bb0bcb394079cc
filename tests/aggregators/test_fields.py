"""Tests `tff_pfl.aggregators.fields`."""

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal, local_sgd, tiny_model
from tests.marks import together
from tff_pfl.aggregators import Counted, CountedFactory, FieldsFactory, StackFactory
from tff_pfl.algorithms import make
from tff_pfl.templates import with_aggregator

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

VECTOR = tff.types.TensorType(np.float32, [2])
WEIGHT = tff.types.to_type(np.float32)


class Upload(NamedTuple):
    """An upload whose fields are not in alphabetical order."""

    mean: Any
    clipped: Any
    all: Any


UPLOAD = tff.types.StructWithPythonType(
    [
        ("mean", collections.OrderedDict(z=np.float32, a=VECTOR)),
        ("clipped", VECTOR),
        ("all", [np.int32, VECTOR]),
    ],
    Upload,
)


def clipped_sum():
    """Returns an unweighted aggregator with a state, the norm, and measurements."""
    norm = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 1.0)
    return tff.aggregators.clipping_factory(norm, tff.aggregators.SumFactory())


FACTORIES = {
    "mean": tff.aggregators.MeanFactory(),
    "clipped": clipped_sum(),
    "all": StackFactory(),
}


def upload(client_id):
    vector = np.float32([client_id, 10])
    return Upload(
        collections.OrderedDict(z=np.float32(client_id), a=2 * vector),
        vector,
        [np.int32(client_id), -vector],
    )


@pytest.fixture(scope="module")
def process():
    return FieldsFactory(**FACTORIES).create(UPLOAD, WEIGHT)


def test_process_has_the_documented_types(process):
    assert process.is_weighted
    result = process.next.type_signature.result
    assert str(result.result) == (
        "<mean=<z=float32,a=float32[2]>,clipped=float32[2],"
        "all=<value=<int32[?],float32[?,2]>,weight=float32[?]>>@SERVER"
    )
    for by_field in (result.state, result.measurements):
        assert tff.structure.name_list(by_field.member) == list(FACTORIES)


@pytest.mark.thorough
def test_each_field_is_aggregated_separately(process):
    """Uses two rounds, which have different clipping norms."""
    together, alone = process.initialize(), {}
    for name, factory in FACTORIES.items():
        weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
        alone[name] = factory.create(UPLOAD[name], *[WEIGHT] * weighted)
    states = {name: single.initialize() for name, single in alone.items()}
    for cohort in ((3, 1, 2), (4, 0)):
        uploads, weights = list(map(upload, cohort)), [np.float32(i + 1) for i in cohort]
        output = process.next(together, uploads, weights)
        for name, single in alone.items():
            values = [getattr(value, name) for value in uploads]
            expected = single.next(states[name], values, *[weights] * single.is_weighted)
            for part in ("state", "result", "measurements"):
                assert_equal(getattr(output, part)[name], getattr(expected, part))
            states[name] = expected.state
        assert not np.array_equal(
            *(tf.nest.flatten(s["clipped"])[0] for s in (together, output.state))
        )
        together = output.state


@together("value_type", [collections.OrderedDict(b=np.float32, a=np.float32), np.float32])
def test_uploads_with_other_fields_are_refused(value_type):
    factory = FieldsFactory(a=StackFactory(), b=StackFactory())
    message = "^The aggregators are for the fields a, b, found .*float32"
    with pytest.raises(TypeError, match=message):
        factory.create(tff.types.to_type(value_type), WEIGHT)


COUNTED = tff.types.StructWithPythonType([("value", np.float32), ("number", np.float32)], Counted)


def test_counted_computes_the_mean_and_the_number():
    """Includes a client that was left out, with zeros and weight 0."""
    process = CountedFactory().create(COUNTED, WEIGHT)
    uploads = [Counted(np.float32(v), np.float32(v != 0)) for v in (3.0, 0.0, 9.0)]
    output = process.next(process.initialize(), uploads, [1.0, 0.0, 2.0])
    assert_close(dict(output.result), {"value": 7.0, "number": 2.0})


def test_counted_mean_can_be_replaced():
    algorithm = make("scaffold", tiny_model(), local_sgd(), num_clients=3)
    robust = tff.learning.robust_aggregator()
    (exchange,) = with_aggregator(algorithm, robust).exchanges
    assert isinstance(exchange.aggregator, CountedFactory)
    assert exchange.aggregator.mean is robust

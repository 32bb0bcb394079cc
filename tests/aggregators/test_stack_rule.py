"""Tests rules as aggregation processes: types, clients left out, and too few clients."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.templates.mean_process import algorithm, clients, compose, examples, mean_exchange
from tff_pfl import runtime
from tff_pfl.aggregators import Stack, StackRuleFactory, robust_rules
from tff_pfl.templates.aggregators import AGGREGATORS
from tff_pfl.testing.eager import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

TYPE = tff.types.to_type(
    collections.OrderedDict(
        matrix=tff.types.TensorType(np.float32, [2, 1]), scalar=tff.types.TensorType(np.float64)
    )
)
WEIGHT = tff.types.TensorType(np.float32)


def unmeasured(rule, *options):
    return lambda stack: (rule(stack, *options), {})


TRIMMED = unmeasured(robust_rules.trimmed_mean, 0.25)
MEDIAN = unmeasured(robust_rules.median)
KRUM = unmeasured(robust_rules.krum, 0)  # It needs three clients or more.


@pytest.fixture(scope="module")
def process():
    return StackRuleFactory(TRIMMED).create(TYPE, WEIGHT)


def upload(value):
    matrix = np.array([[value], [-value]], np.float32)
    return collections.OrderedDict(matrix=matrix, scalar=np.float64(value))


def run(process, values, weights):
    output = process.next(
        process.initialize(), list(map(upload, values)), list(map(np.float32, weights))
    )
    assert len(output.state) == len(output.measurements) == 0
    result = output.result
    np.testing.assert_array_equal(result["matrix"], [[result["scalar"]], [-result["scalar"]]])
    return result["scalar"]


def test_process_has_the_documented_types(process):
    value = "<matrix=float32[2,1],scalar=float64>"
    assert str(process.next.type_signature) == (
        f"(<state=<>@SERVER,value={{{value}}}@CLIENTS,weight={{float32}}@CLIENTS> -> "
        f"<state=<>@SERVER,result={value}@SERVER,measurements=<>@SERVER>)"
    )


@pytest.mark.parametrize(
    "make_context", [runtime.create_graph_context, runtime.create_cpp_context], ids=["graph", "cpp"]
)
def test_rule_runs_on_each_runtime(process, make_context):
    with tff.framework.get_context_stack().install(make_context()):
        assert run(process, [1.0, 900.0, 2.0, 4.0], [1.0, 1.0, 1.0, 1.0]) == 3.0
        # Clients that were left out have weight 0 and send zeros.
        assert run(process, [0.0, 3.0, 0.0], [0.0, 2.0, 0.0]) == 3.0


def test_clients_left_out_do_not_count():
    stack = Stack(tf.constant([0.0, 5.0, 0.0, 7.0, 6.0]), tf.constant([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert StackRuleFactory(MEDIAN).of(stack) == 6.0
    assert StackRuleFactory(KRUM, 3).of(stack) == 5.0  # The first of equal scores.


@together(("weights", "result"), [((1, 1, 1), 2.0), ((1, 0, 1), np.nan), ((), np.nan)])
def test_too_few_clients_give_nan(weights, result):
    stack = Stack([tf.fill([len(weights), 2], 2.0)], tf.constant(weights, tf.float32))
    np.testing.assert_array_equal(StackRuleFactory(KRUM, 3).of(stack), [[result, result]])


@pytest.mark.thorough
def test_metrics_contain_the_rules_measurements():
    """Checks names and values of measurements, which are NaN with too few clients."""
    factory = AGGREGATORS["geometric_median"](iterations=7)
    process = compose(mean_exchange(aggregator=factory))
    state = process.initialize()
    output = process.next(state, clients(process, *map(examples, (1.0, 2.0, 4.0, 9.0))))
    measured = output.metrics["train"]["aggregator"]
    assert list(measured) == ["residual", "iterations"]
    assert measured["residual"] < 1e-6 and measured["iterations"] == 0  # The points are on a line.
    nobody = process.next(state, clients(process, examples())).metrics["train"]
    assert np.isnan(nobody["aggregator"]["residual"]) and nobody["server_kept"] == 1


def test_server_keeps_its_state_with_too_few_clients():
    exchange = mean_exchange(aggregator=StackRuleFactory(KRUM, 3))
    process = EagerProcess(algorithm(exchange))
    state = process.initialize()
    three = process.next(state, clients(process, *map(examples, (3.0, 3.0, 3.0))))
    np.testing.assert_array_equal(three.state.algorithm, [3.0, 3.0])
    # One of the three clients has no examples.
    two = process.next(state, clients(process, examples(3.0), examples(), examples(3.0)))
    np.testing.assert_array_equal(two.state.algorithm, state.algorithm)
    kept = [output.metrics["train"]["server_kept"] for output in (three, two)]
    assert kept == [0, 1]


def test_other_types_than_floats_are_refused():
    with pytest.raises(TypeError, match="^Only tensors of floats can be aggregated, found"):
        StackRuleFactory(MEDIAN).create(tff.types.to_type([np.float32, np.int32]), WEIGHT)

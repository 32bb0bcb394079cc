"""Tests that federated computations give equal results on the graph and the stock runtime.

By default, results of the graph runtime are compared with the results that cases state.
`make test-all` runs all cases on the stock runtime as well. There, TFF's plain bodies replace the
secure intrinsics, which the stock runtime cannot execute.
"""

import collections
import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.runtime.conformance import (
    cases_aggregations,
    cases_cohorts,
    cases_computations,
    cases_errors,
    cases_learning,
    cases_placements,
    cases_sequences,
    cases_structs,
    cases_tensorflow,
    cases_values,
)
from tests.runtime.conformance.cases import RUN_ERRORS, UNSTATED, assert_same
from tff_pfl import runtime
from tff_pfl.runtime.graph.clients import mapping

MODULES = [
    cases_placements,
    cases_aggregations,
    cases_cohorts,
    cases_values,
    cases_structs,
    cases_sequences,
    cases_computations,
    cases_tensorflow,
    cases_errors,
    cases_learning,
]


def each_case(*, fast):
    """Parametrizes a test by cases; one process runs all cases of a module, which share values."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=case.name, marks=pytest.mark.xdist_group(module.__name__))
            for module in MODULES
            for case in module.case
            if case.fast or not fast
        ],
    )


@functools.cache
def stock_context():
    def compile_for_stock_runtime(computation):
        plain = tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
        return tff.backends.native.desugar_and_transform_to_native(plain)

    return tff.framework.SyncExecutionContext(
        executor_fn=runtime.create_cpp_context().executor_factory,
        compiler_fn=compile_for_stock_runtime,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )


DEVICE = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"


@functools.cache
def graph_context(vectorize, num_shards):
    """Returns a context with `num_shards` shards of the cohort on one device."""
    return runtime.create_graph_context(vectorize=vectorize, devices=[DEVICE] * num_shards)


@functools.cache
def built(case):
    return case.build()


def outcome(context, function, args):
    """Returns the result or the exception."""
    with tff.framework.get_context_stack().install(context):
        try:
            return function(*args)
        except (TypeError, ValueError, *RUN_ERRORS) as error:
            return error


def outcomes(run):
    """Yields the outcomes of the graph runtime, vectorized and in loops on two shards.

    Vectorized clients are grouped by their shapes, however few of them there are.
    """
    with mock.patch.object(mapping, "_LEAST_GROUP", 1):
        yield outcome(graph_context("auto", 1), run.function, run.args)
    yield outcome(graph_context("never", 1 + run.is_divisible), run.function, run.args)


def check(case, found, expected):
    """Compares an outcome with a result, or with the exceptions of a case that must raise."""
    if case.raises and (expected is UNSTATED or isinstance(found, Exception)):
        with pytest.raises(case.raises, match=case.match):
            raise_if_exception(found)
        return
    raise_if_exception(found)
    if expected is not UNSTATED:
        assert_same(found, expected)


def raise_if_exception(value):
    if isinstance(value, Exception):
        raise value


@each_case(fast=True)
def test_graph_runtime_gives_the_stated_result(case):
    """Runs each case vectorized, and in loops on two shards."""
    run = built(case)
    assert case.raises or run.gives is not UNSTATED
    for found in outcomes(run):
        check(case, found, run.gives)


@pytest.mark.slow
@each_case(fast=False)
def test_both_runtimes_give_the_same_result(case):
    """Compares the stock runtime with the stated result, and the graph runtime with both."""
    run = built(case)
    expected = outcome(stock_context(), run.instead, run.args)
    check(case, expected, UNSTATED if case.raises else run.gives)
    for found in outcomes(run):
        check(case, found, run.gives if case.raises else expected)


def test_names_are_unique():
    names = [case.name for module in MODULES for case in module.case]
    assert len(names) == len(set(names))


@together(
    ("actual", "expected"),
    [
        (np.float32(1.0), np.float64(1.0)),
        (np.float32(1.0), np.array(1.0, np.float32)),
        (np.ones(2, np.float32), np.ones(2)),
        (np.float32(1.0005), np.float32(1.0)),
        (np.float32(np.nan), np.float32(1.0)),
        (np.int32(10**8), np.int32(10**8 + 1)),
        (np.bool_(True), np.bool_(False)),
        (np.ones((2, 1)), np.ones((1, 2))),
        (np.array([b"x"], object), np.array([b"y"], object)),
        (b"x", b"y"),
        ([1], [1, 1]),
        ((), []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, collections.OrderedDict(a=1)),
        (cases_structs.Named(1, 2), (1, 2)),
        (cases_structs.Attrs(1, 2), cases_structs.Attrs(1, 3)),
        (cases_sequences.floats(1, 2), cases_sequences.floats(1, 3)),
        (cases_sequences.floats(1, 2), cases_sequences.floats(1, 2, 3)),
    ],
)
def test_assert_same_finds_differences(actual, expected):
    for value in (actual, expected):
        assert_same([value], [value])
    with pytest.raises(AssertionError):
        assert_same([actual], [expected])

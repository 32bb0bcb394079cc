"""Every federated computation gives the same result on the graph runtime and on the stock one.

A case is built, and run on the stock runtime, once. The stock runtime executes no secure
intrinsics: the reference has TFF's plain bodies in their place. Where that runtime is not
installed, `--reference=graph` has the graph runtime on the CPU instead, a client at a time.
"""

import fnmatch
import functools

import pytest
import tensorflow_federated as tff

from tests.runs import ROOT
from tests.runtime.conformance.cases import CASES, MODULES
from tests.runtime.conformance.catalogue import RUN_ERRORS, UNSTATED
from tests.runtime.conformance.compare import assert_same
from tests.runtime.conformance.defaults import PATTERNS, is_default
from tff_pfl import runtime


def marks(module, case):
    """One process runs all kinds of a case, and the cases that share what a module builds."""
    slow = [] if is_default(case.name) else [pytest.mark.slow]
    return [pytest.mark.xdist_group(module.__name__), *slow]


PARAMETERS = [
    pytest.param(case, kind, marks=marks(module, case), id=f"{case.name}-{kind}")
    for module in MODULES
    for case in module.case
    for kind in case.kinds
]


def _compile_for_stock_runtime(computation):
    plain = tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
    return tff.backends.native.desugar_and_transform_to_native(plain)


@functools.cache
def stock_context():
    return tff.framework.SyncExecutionContext(
        executor_fn=runtime.create_cpp_context().executor_factory,
        compiler_fn=_compile_for_stock_runtime,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )


@functools.cache
def graph_context(vectorize):
    return runtime.create_graph_context(vectorize=vectorize)


@functools.cache
def built(case):
    return case.build()


def outcome(context, function, args):
    """The result, or the exception."""
    with tff.framework.get_context_stack().install(context):
        try:
            return function(*args)
        except (TypeError, ValueError, *RUN_ERRORS) as error:
            return error


@functools.cache
def graph_context_on_cpu():
    return runtime.create_graph_context(vectorize="never", devices=["CPU:0"])


@functools.cache
def on_reference(case, name):
    run = built(case)
    context = {"stock": stock_context, "graph": graph_context_on_cpu}[name]()
    return outcome(context, run.instead, run.args)


def on_graph_runtime(case, vectorize):
    run = built(case)
    return outcome(graph_context(vectorize), run.function, run.args)


def check_raised(case, result):
    with pytest.raises(case.raises, match=case.match):
        raise_if_exception(result)


def check_same(actual, expected, tolerance):
    raise_if_exception(actual)
    raise_if_exception(expected)
    if expected is not UNSTATED:
        assert_same(actual, expected, tolerance)


def raise_if_exception(value):
    if isinstance(value, Exception):
        raise value


@pytest.mark.parametrize(("case", "kind"), PARAMETERS)
def test_result(case, kind, pytestconfig):
    """The stock runtime gives what a case states, a graph runtime what the stock runtime gives."""
    reference = on_reference(case, pytestconfig.getoption("reference"))
    stated, tolerance = built(case).gives, built(case).tolerance
    if kind == "stock":
        actual, expected = reference, stated
    else:
        actual, expected = on_graph_runtime(case, vectorize=kind), reference
    if case.raises is None:
        check_same(actual, expected, tolerance)
    elif kind == "stock" or stated is UNSTATED or isinstance(actual, Exception):
        check_raised(case, actual)
    else:
        check_same(actual, stated, tolerance)


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert all(fnmatch.filter(names, pattern) for pattern in PATTERNS)


def test_the_guide_says_how_many_there_are():
    guide = " ".join((ROOT / "docs" / "runtime_and_gpus.md").read_text().split())
    by_default = sum(is_default(case.name) for case in CASES)
    assert f"suite of {len(CASES)} cases is run on both, {by_default} of them by default" in guide

"""Runs tests on each runtime; the fast tests use only this library's."""

import pytest
import tensorflow_federated as tff

from tests.marks import slow
from tff_pfl import runtime


@pytest.fixture(
    params=[
        pytest.param(runtime.create_graph_context, id="graph"),
        slow(runtime.create_cpp_context, id="stock"),
    ]
)
def each_runtime(request):
    """Sets the context of TFF."""
    with tff.framework.get_context_stack().install(request.param()):
        yield

"""The runtime of algorithms' tests."""

import pytest
import tensorflow_federated as tff

from tff_pfl import runtime


@pytest.fixture(scope="package", autouse=True)
def clients_in_a_loop():
    """Without vectorization, whose graphs take seconds to build.

    That it makes no difference is tested in `tests/runtime/conformance`.
    """
    context = runtime.create_graph_context(vectorize="never")
    with tff.framework.get_context_stack().install(context):
        yield

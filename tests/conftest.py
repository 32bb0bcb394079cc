"""What every process that runs tests begins with: quiet libraries, a worker that ends with it."""

import pytest

from tff_pfl.runtime.startup import prepare_process

prepare_process()


@pytest.fixture(scope="session", autouse=True)
def cpp_context():
    """Executes TFF's computations in the stock runtime, unless a test says otherwise."""
    from tff_pfl import runtime  # not before the process is prepared

    runtime.set_cpp_context()

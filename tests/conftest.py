"""What every process that runs tests begins with: quiet libraries, one runtime."""

import pytest

from tff_pfl.runtime.startup import prepare_process

prepare_process()


@pytest.fixture(scope="session", autouse=True)
def graph_context():
    """Executes TFF's computations as programs do, unless a test says otherwise."""
    from tff_pfl import runtime  # not before the process is prepared

    runtime.set_graph_context()

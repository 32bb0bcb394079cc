"""Sets the runtime of the algorithms' tests."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def in_a_loop(clients_in_a_loop):
    """Runs clients one after another."""

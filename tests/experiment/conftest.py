"""The runtime of tests of runs."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def in_a_loop(clients_in_a_loop):
    """All of them run clients one after another, and share their graphs."""

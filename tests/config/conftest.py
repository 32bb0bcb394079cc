"""Provides finished runs."""

from tests.experiment.conftest import finished_run, in_a_loop  # noqa: F401  fixtures

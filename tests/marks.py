"""Marks of tests."""

import pytest


def slow(*values, **options):
    """A parameter set that is left out by default, see `markers` in `pyproject.toml`."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)

"""Defines marks of tests."""

import pytest


def slow(*values, **options):
    """Returns a parameter set that is skipped by default; see `markers` in `pyproject.toml`."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)

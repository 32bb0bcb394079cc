"""Defines marks of tests."""

import functools
import inspect

import pytest


def slow(*values, **options):
    """Returns a parameter set that is skipped by default; see `markers` in `pyproject.toml`."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def together(names, values):
    """Runs a test with each of the values, like `parametrize`, but as one case.

    Use it for quick tests of many values. A failure has a note that names the values.
    """
    values = list(values)

    def decorate(test):
        signature = inspect.signature(test)
        own = [names] if isinstance(names, str) else names
        fixtures = [signature.parameters[name] for name in signature.parameters if name not in own]

        @functools.wraps(test)
        def run(*args, **given):
            for value in values:
                chosen = dict(zip(own, [value] if own != names else value, strict=True))
                try:
                    test(*args, **given, **chosen)
                except BaseException as error:
                    error.add_note(f"with {chosen}")
                    raise

        run.__signature__ = signature.replace(parameters=fixtures)
        return run

    return decorate

"""Runs the examples in the docstrings of the front door, `import tff_pfl`."""

import doctest
import inspect
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tff_pfl import testing

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

NAMES = {"np": np, "tempfile": tempfile, "testing": testing, "tf": tf, "tff": tff}
FUNCTIONS = [name for name in tff_pfl.__all__ if inspect.isfunction(getattr(tff_pfl, name))]
# These end the process, or prepare a whole process.
WITHOUT = {"prepare_process", "run_program"}


@pytest.mark.parametrize("name", ["Experiment", *sorted(set(FUNCTIONS) - WITHOUT)])
def test_example(name):
    docstring = inspect.getdoc(getattr(tff_pfl, name))
    assert ">>>" in docstring, f"tff_pfl.{name} has no example in its docstring."
    names = {"tff_pfl": tff_pfl, **NAMES}
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, None)
    output = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=options).run(test, out=output.append)
    assert not output, "".join(output)

"""Tests the line that errors of blocks name."""

import functools
import json

import pytest
import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.tracing import errors
from tff_pfl.tracing.trace import trace


def adds_different_structures():
    return trees.add({"a": tf.constant(1.0)}, {"b": tf.constant(1.0)})


def reads_wrong_json():
    return json.loads("{")


def fails_in_tensorflow():
    return tf.constant([1.0]) + tf.constant([1.0, 2.0], tf.float64)


def test_error_names_the_line_of_the_user():
    """Covers errors that the library, TensorFlow or Python raise in a user's line."""
    for function in (adds_different_structures, fails_in_tensorflow, reads_wrong_json):
        with pytest.raises(errors.BlockTracingError) as raised:
            trace("client_work", function)
        line = function.__code__.co_firstlineno + 1
        assert f"({__file__}, line {line})" in str(raised.value)


def test_error_names_the_line_of_the_library_without_user_code():
    with pytest.raises(errors.BlockTracingError, match=r"/tff_pfl/local/trees\.py, line \d+\)"):
        trace("finalize", functools.partial(trees.add, {"a": 1.0}, {"b": 1.0}))

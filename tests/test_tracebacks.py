"""The line that an error names."""

import functools
import json

import pytest
import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.templates import errors
from tff_pfl.templates.blocks import trace


def adds_what_does_not_fit():
    return trees.add({"a": tf.constant(1.0)}, {"b": tf.constant(1.0)})


def reads_no_json():
    return json.loads("{")


def fails_in_tensorflow():
    return tf.constant([1.0]) + tf.constant([1.0, 2.0], tf.float64)


def test_the_users_own():
    """The library, TensorFlow or Python fails at what a user's line gave it."""
    for function in (adds_what_does_not_fit, fails_in_tensorflow, reads_no_json):
        with pytest.raises(errors.BlockTracingError) as raised:
            trace("client_work", function)
        line = function.__code__.co_firstlineno + 1
        assert f"({__file__}, line {line})" in str(raised.value)


def test_else_the_librarys():
    with pytest.raises(errors.BlockTracingError, match=r"/tff_pfl/local/trees\.py, line \d+\)"):
        trace("finalize", functools.partial(trees.add, {"a": 1.0}, {"b": 1.0}))

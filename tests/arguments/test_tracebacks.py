"""Tests the line that errors of blocks name, and short tracebacks."""

import functools
import json
import traceback

import pytest
import tensorflow as tf

import tff_pfl
from tff_pfl import testing
from tff_pfl.arguments.ranges import takes, whole
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


def in_the_library(code):
    """Returns a function whose code seems to be in a file of the library."""
    return eval(compile(f"lambda function=None, number=1: {code}", trees.__file__, "eval"))


call = takes(number=whole(1))(in_the_library("function()"))


def frames_of(function, *args, **kwargs):
    """Returns the names of the functions in the traceback of a call."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        function(*args, **kwargs)
    return [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:]


@pytest.fixture
def filtering():
    tf.debugging.enable_traceback_filtering()
    yield
    tf.debugging.disable_traceback_filtering()


def test_tracebacks_of_mistakes_have_the_users_lines_alone(filtering):
    assert frames_of(call, reads_wrong_json) == ["reads_wrong_json"]
    assert frames_of(call, None, number=0) == []  # the caller's line is the last
    tf.debugging.disable_traceback_filtering()
    assert frames_of(call, None, number=0)[-1] == "check"
    assert frames_of(call, reads_wrong_json)[-2:] == ["decode", "raw_decode"]


def test_tracebacks_of_the_librarys_own_faults_are_whole(filtering):
    fault = in_the_library("{}[0]")
    assert frames_of(call, fault)[-2:] == ["<lambda>", "<lambda>"]
    assert frames_of(call, functools.partial(library_called_by_user, fault))[-1] == "<lambda>"


def library_called_by_user(function):
    return function()


def test_traceback_of_a_block_shows_the_failing_line(filtering):
    def client_work(weights, state, examples, context):
        raise KeyError("mine")

    own = tff_pfl.averaging(lambda seed: tf.zeros([]), client_work, lambda *inputs: inputs[0])
    with pytest.raises(errors.BlockTracingError) as raised:
        tff_pfl.compose(own, testing.EXAMPLES_TYPE, 0)
    cause = traceback.extract_tb(raised.value.__cause__.__traceback__)
    assert [frame.name for frame in cause] == ["client_work"]
    assert len(traceback.extract_tb(raised.value.__traceback__)) == 1

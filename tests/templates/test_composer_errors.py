"""Tests that errors name blocks that do not fit, with their types."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.templates.mean_process import EXAMPLES_TYPE, Visits, algorithm, compose, mean_exchange
from tff_pfl import templates
from tff_pfl.models import Mean
from tff_pfl.templates import ClientOutput, Personalization, errors
from tff_pfl.tracing.errors import BlockTracingError

F, F3 = tff.types.TensorType(np.float32), tff.types.TensorType(np.float32, [3])


def returns(output):
    """Makes client work that returns `output(server, state, data)`."""
    return {"client_work": lambda server, state, data, context: output(server, state, data)}


def changed(**fields):
    """Makes client work whose `ClientOutput` has some fields replaced."""
    work = mean_exchange().client_work
    return {"client_work": lambda *args: work(*args)._replace(**fields)}


def finalizes(result):
    """Makes a finalizer that returns `result(server, change)`."""
    return {"finalize": lambda server, change, round_num: result(server, change)}


def measures(metrics):
    return finalizes(lambda server, change: (server, metrics))


ONE = Mean(1.0, 1.0)


@pytest.mark.thorough
@together(
    ("options", "message"),
    [
        # A client's state.
        (
            returns(
                lambda w, state, data: ClientOutput(Visits(tf.cast(state.count, tf.float32)), w)
            ),
            "expected: <count=int32>.*found: +<count=float32>.*Tip",
        ),
        # The result of client work.
        (returns(lambda w, state, data: (state, w)), "returned tuple, not ClientOutput"),
        (changed(weight=[1.0, 2.0]), r"weight must consist of real scalars, found <float32\[2\]>"),
        (changed(metrics=[("loss", ONE)]), "must be a mapping from names to metrics, found list"),
        (changed(metrics={"loss": 1.0}), "metric 'loss' must be a .*Mean.*, found float"),
        (
            changed(metrics={"num_examples": ONE}),
            "'num_examples' has a name that the composer uses",
        ),
        (changed(metrics={"server/x": ONE}), "the name of a metric must be .*, found 'server/x'"),
        (
            changed(metrics={"loss": Mean(1.0, np.complex64(1))}),
            "real scalars, found <float32,complex64>",
        ),
        (
            returns(
                lambda w, state, data: (
                    mean_exchange().client_work(w, state, data, None)._replace(upload=data.x)
                )
            ),
            r"the upload.*float32\(None,\)",
        ),
        (changed(state=None), "client_work returned state=None. Return "),
        # The result of the server's finalizer.
        (
            finalizes(lambda server, change: (change[:1], {})),
            r"expected: float32\[2\].*found: +float32\[1\]",
        ),
        (finalizes(lambda server, change: Mean(server, change)), "must return a pair, .*"),
        (measures([1.0]), "finalize: metrics must be a mapping .*, found list"),
        (measures({"a": {"b c": 5.0}}), "the name of a metric must be .*, found 'b c'"),
        (measures({"z": {"of": ["text"]}}), "metric 'of' must consist of real numbers, found str"),
    ],
)
def test_results_that_do_not_fit_raise(options, message):
    with pytest.raises(
        errors.BlockResultError, match=f"(?s)^Exchange 'train' of the algorithm: .*{message}"
    ):
        compose(mean_exchange(**options))


@together(
    ("found", "expected"),
    [
        ({"m": {"b": (F3,), "a": F}, "n": F}, "the order is m/b/0, m/a, n, not m/a, m/b/0, n"),
        ({"m": {"a": F, "b": (F,)}, "n": F}, r"'m/b/0' is float32, not float32\[3\]"),
        (F, "'m/a' is missing, not float32"),
    ],
)
def test_error_names_the_first_difference_of_types(found, expected):
    type_ = tff.types.to_type({"m": {"a": F, "b": (F3,)}, "n": F})
    with pytest.raises(errors.BlockResultError, match=f"first:    {expected}"):
        errors.check_same_type("State", type_, tff.types.to_type(found), "")


@together(
    ("exchange", "options", "message"),
    [
        (
            returns(lambda server, state, data: ClientOutput(state, server.weights)),
            {},
            r"(?s)Exchange 'train' of .*: client_work failed.*AttributeError.*shared=float32\[2\]",
        ),
        ({}, {"server_init": lambda: ()}, "^server_init"),
        ({}, {"personalize": Personalization(client_work=lambda: ())}, "^personalize"),
        ({}, {"global_weights": lambda server: server.missing}, "^global_weights"),
    ],
)
def test_error_names_a_failing_block_and_its_types(exchange, options, message):
    with pytest.raises(BlockTracingError, match=message):
        compose(mean_exchange(**exchange), **options)


@together(
    ("options", "message"),
    [
        (returns(lambda w, state, data: ClientOutput(state, tf.constant("text"))), "of type.*str"),
        ({"aggregator": None}, r"client_work uploads\n  float32\[2\].*no aggregator.*Tip"),
        ({"aggregator": "mean"}, "tff.aggregators"),
    ],
)
def test_aggregators_that_do_not_fit_raise(options, message):
    with pytest.raises(errors.AggregatorError, match=f"(?s)^Exchange 'train'.*{message}"):
        compose(mean_exchange(**options))


def test_models_of_different_types_raise():
    with pytest.raises(
        errors.BlockResultError,
        match=r"(?s)personalize gives .* than global_weights.*float32\n.*float32\[2\]\nTip",
    ):
        compose(mean_exchange(), global_weights=lambda server: server[0])
    other = algorithm(
        mean_exchange(),
        personalize=Personalization(
            distribute=lambda server: server,
            client_work=lambda server, state, data, context: server[0],
        ),
    )
    with pytest.raises(errors.BlockResultError, match="than the further models 'other'"):
        templates.compose(
            algorithm(mean_exchange()), EXAMPLES_TYPE, further_models={"other": other}
        )


@together(
    ("exchanges", "options", "error", "message"),
    [
        (2, {}, ValueError, r"distinct names; got \['train', 'train'\]"),
        (0, {}, ValueError, "exchanges must be one or more"),
        (1, {"seed": -1}, ValueError, "^seed must be a whole number in 0 to 9"),
        (1, {"report": "secret"}, ValueError, "Unknown report 'secret'"),
        (
            1,
            {"personalize": lambda server: server},
            TypeError,
            "^personalize must be a tff_pfl.Personalization, got <",
        ),
        (1, {"exchanges": [None]}, TypeError, "^an exchange must be a tff_pfl.Exchange, got None"),
    ],
)
def test_invalid_algorithms_raise(exchanges, options, error, message):
    with pytest.raises(error, match=message):
        compose(*[mean_exchange()] * exchanges, **options)


@pytest.mark.parametrize("name", ["bytes_up_per_client", "a/b"])
def test_exchange_must_not_hide_other_metrics(name):
    with pytest.raises(ValueError, match=f"An exchange cannot be called {name!r}: its metrics"):
        compose(mean_exchange(name=name))

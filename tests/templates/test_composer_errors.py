"""Blocks that do not fit are named, with their types."""

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.templates.mean_process import (
    EXAMPLES_TYPE,
    Visits,
    algorithm,
    compose,
    mean_exchange,
)
from tff_pfl import templates
from tff_pfl.models import Mean
from tff_pfl.names import IN_PARTS
from tff_pfl.templates import (
    ClientOutput,
    Personalization,
    blocks,
    errors,
)

F, F3 = tff.types.TensorType(np.float32), tff.types.TensorType(np.float32, [3])


class Twin(NamedTuple):
    """A container with the fields of `Visits`."""

    count: Any


class TestErrors:
    def test_client_state_of_another_type(self):
        exchange = mean_exchange(
            client_work=lambda server, state, data, context: ClientOutput(
                Visits(tf.cast(state.count, tf.float32)), server
            )
        )
        with pytest.raises(
            errors.ClientStateTypeError,
            match=r"(?s)Exchange 'train'.*expected: <count=int32>.*found: +<count=float32>.*Tip",
        ):
            compose(exchange)

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            ({"m": {"b": (F3,), "a": F}, "n": F}, "'m' has the order b, a, not a, b"),
            ({"m": {"a": F, "b": (F,)}, "n": F}, r"'m/b/\[0\]' is float32, not float32\[3\]"),
            ({"m": {"a": F}, "n": F}, "'m' has a, not a, b"),
            ({"m": {"a": F, "b": {"0": F3}}, "n": F}, r"'m/b' has 0, not \[0\]"),
            (F, "all of it is float32, not <m=<"),
        ],
    )
    def test_the_first_element_that_differs(self, found, expected):
        of = tff.types.to_type({"m": {"a": F, "b": (F3,)}, "n": F})
        with pytest.raises(errors.ClientStateTypeError, match=f"first:    {expected}"):
            errors.check_same_type(
                errors.ClientStateTypeError, "State", of, tff.types.to_type(found), ""
            )

    @pytest.mark.parametrize("container", [dict, collections.OrderedDict, Twin])
    def test_client_state_in_another_container(self, container):
        exchange = mean_exchange(
            client_work=lambda server, state, data, context: ClientOutput(
                container(count=state.count), server
            )
        )
        with pytest.raises(
            errors.ClientStateTypeError,
            match=f"(?s)Exchange 'train'.*expected: Visits of.*found: +{container.__name__}.*Tip",
        ):
            compose(exchange)

    def test_server_state_in_another_container(self):
        class Inner(NamedTuple):
            x: Any

        with pytest.raises(
            errors.ServerStateTypeError, match="(?s)in 'b'.*expected: Inner of.*found: +dict"
        ):
            errors.check_same_type(
                errors.ServerStateTypeError,
                "finalize",
                blocks.type_of({"a": tf.zeros([]), "b": Inner(tf.zeros([]))}),
                blocks.type_of(collections.OrderedDict(a=tf.zeros([]), b={"x": tf.zeros([])})),
                "",
            )

    def test_server_state_of_another_shape(self):
        exchange = mean_exchange(finalize=lambda server, change, round_num: (change[:1], {}))
        with pytest.raises(
            errors.ServerStateTypeError,
            match=r"(?s)finalize.*expected: float32\[2\].*found: +float32\[1\]",
        ):
            compose(exchange)

    def test_client_work_that_returns_something_else(self):
        with pytest.raises(errors.ClientOutputError, match="returned tuple, not ClientOutput"):
            compose(mean_exchange(client_work=lambda server, state, data, context: (state, server)))

    def test_a_weight_that_is_no_scalar(self):
        work = mean_exchange().client_work
        with pytest.raises(errors.ClientOutputError, match=r"weight must be a scalar.*\(2,\)"):
            compose(
                mean_exchange(client_work=lambda *args: work(*args)._replace(weight=[1.0, 2.0]))
            )

    def test_a_metric_that_is_no_mean(self):
        work = mean_exchange().client_work
        with pytest.raises(errors.ClientOutputError, match="metric 'loss' must be a .*Mean"):
            compose(
                mean_exchange(client_work=lambda *args: work(*args)._replace(metrics={"loss": 1.0}))
            )

    def test_a_metric_of_a_reserved_name(self):
        work = mean_exchange().client_work
        metrics = {"num_examples": Mean(1.0, 1.0)}
        with pytest.raises(errors.ClientOutputError, match="'num_examples' has a name that"):
            compose(mean_exchange(client_work=lambda *args: work(*args)._replace(metrics=metrics)))

    @pytest.mark.parametrize(
        ("metrics", "message"),
        [
            ([("loss", Mean(1.0, 1.0))], "metrics must be a mapping .*, found list"),
            (Mean(1.0, 1.0), "metrics must be a mapping .*, found Mean"),
            ({7: Mean(1.0, 1.0)}, f"the name of a metric must be a string of {IN_PARTS}, found 7"),
            ({"my loss": Mean(1.0, 1.0)}, "the name of a metric must be .*, found 'my loss'"),
            ({"größe": Mean(1.0, 1.0)}, "the name of a metric must be .*, found 'größe'"),
            ({"server/x": Mean(1.0, 1.0)}, "the name of a metric must be .*, found 'server/x'"),
            (
                {"loss": Mean([1.0, 2.0], 1.0)},
                r"metric 'loss' must have real scalars, found <total=float32\[2\],count=float32>",
            ),
            (
                {"loss": Mean(1.0, np.complex64(1))},
                "metric 'loss' must have real scalars, found <total=float32,count=complex64>",
            ),
        ],
        ids=str,
    )
    def test_metrics_that_are_no_mapping_of_scalars(self, metrics, message):
        work = mean_exchange().client_work
        with pytest.raises(errors.ClientOutputError, match=f"^Exchange 'train': .*{message}"):
            compose(mean_exchange(client_work=lambda *args: work(*args)._replace(metrics=metrics)))

    @pytest.mark.parametrize("weight", [1j, "heavy", True], ids=repr)
    def test_a_weight_that_is_no_real_number(self, weight):
        work = mean_exchange().client_work
        with pytest.raises(errors.ClientOutputError, match="weight must be a real number, has"):
            compose(mean_exchange(client_work=lambda *args: work(*args)._replace(weight=weight)))

    @pytest.mark.parametrize(
        "finalize",
        [
            lambda server, change, round_num: server + change,
            lambda server, change, round_num: {"first": server, "second": change},
            lambda server, change, round_num: Mean(server, change),
            lambda server, change, round_num: None,
        ],
    )
    def test_a_finalizer_that_returns_no_pair(self, finalize):
        message = "^Exchange 'train': finalize must return a pair, .* Without metrics: return state"
        with pytest.raises(errors.ServerStateTypeError, match=message):
            compose(mean_exchange(finalize=finalize))

    @pytest.mark.parametrize(
        ("metrics", "message"),
        [
            ([1.0], "must return metrics as a mapping .*, found list"),
            (3.0, "must return metrics as a mapping .*, found float"),
            ({0: 1.0}, f"the name of a metric must be a string of {IN_PARTS}, found 0"),
            ({"a/b": 1.0, "a": {"b": 5.0}}, "the name of a metric must be .*, found 'a/b'"),
            ({"a": [{"b c": 5.0}]}, "the name of a metric must be .*, found 'b c'"),
            ({"a": {"b c": 5.0}}, "the name of a metric must be .*, found 'b c'"),
            ({"z": 1j}, "metric 'z' must be of real numbers, found complex128"),
            ({"z": {"of": ["text"]}}, "metric 'z' must be of real numbers, found str"),
        ],
        ids=str,
    )
    def test_metrics_of_the_server_that_are_no_mapping_of_numbers(self, metrics, message):
        exchange = mean_exchange(finalize=lambda server, change, round_num: (server, metrics))
        with pytest.raises(
            errors.ServerMetricsError, match=f"^Exchange 'train': finalize.*{message}"
        ):
            compose(exchange)

    def test_a_block_that_fails_is_named_with_its_types(self):
        def client_work(server, state, data, context):
            return ClientOutput(state, server.weights)

        with pytest.raises(
            errors.BlockTracingError,
            match=r"(?s)Exchange 'train': client_work failed.*AttributeError.*shared=float32\[2\]",
        ):
            compose(mean_exchange(client_work=client_work))

    @pytest.mark.parametrize(
        ("block", "options"),
        [
            ("server_init", {"server_init": lambda: ()}),
            ("client_init", {"client_init": lambda: ()}),
            ("personalize", {"personalize": Personalization(client_work=lambda: ())}),
            ("global_weights", {"global_weights": lambda server: server.missing}),
        ],
    )
    def test_every_block_is_named(self, block, options):
        with pytest.raises(errors.BlockTracingError, match=f"^{block}"):
            compose(mean_exchange(), **options)

    def test_an_aggregator_that_refuses_the_upload(self):
        def client_work(server, state, data, context):
            return ClientOutput(state, tf.constant("text"))

        with pytest.raises(errors.AggregatorError, match="(?s)Exchange 'train'.*of type.*str"):
            compose(mean_exchange(client_work=client_work))

    def test_uploads_that_nobody_aggregates(self):
        with pytest.raises(
            errors.AggregatorError,
            match=r"(?s)^Exchange 'train': client_work uploads\n  float32\[2\].*no aggregator.*Tip",
        ):
            compose(mean_exchange(aggregator=None))

    def test_something_that_is_no_aggregator(self):
        with pytest.raises(errors.AggregatorError, match="tff.aggregators"):
            compose(mean_exchange(aggregator="mean"))

    def test_a_message_of_unknown_size(self):
        work = mean_exchange().client_work
        exchange = mean_exchange(
            client_work=lambda server, state, data, context: work(
                server, state, data, context
            )._replace(upload=data.x)
        )
        with pytest.raises(errors.MessageShapeError, match=r"the upload.*float32\(None,\)"):
            compose(exchange)

    def test_exchanges_of_one_name_and_none(self):
        with pytest.raises(ValueError, match=r"distinct names; got \['train', 'train'\]"):
            compose(mean_exchange(), mean_exchange())
        with pytest.raises(ValueError, match="Need one exchange or more"):
            compose()

    @pytest.mark.parametrize("name", ["bytes_up_per_client", "round", "personalized", "a/b", ""])
    def test_a_name_that_would_hide_other_metrics(self, name):
        with pytest.raises(ValueError, match=f"An exchange cannot be called {name!r}: its metrics"):
            compose(mean_exchange(name=name))

    def test_models_of_different_types(self):
        with pytest.raises(
            errors.ModelTypeError,
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
        with pytest.raises(errors.ModelTypeError, match="than the further models 'other'"):
            templates.compose(
                algorithm(mean_exchange()), EXAMPLES_TYPE, further_models={"other": other}
            )

    def test_what_is_no_exchange_and_no_personalization(self):
        with pytest.raises(
            TypeError, match="^personalize must be a tff_pfl.Personalization, got <"
        ):
            compose(mean_exchange(), personalize=lambda server: server)
        with pytest.raises(TypeError, match="^an exchange must be a tff_pfl.Exchange, got <"):
            compose(lambda server: server)

    @pytest.mark.parametrize("seed", [-1, 1.5, None, 2**63])
    def test_seeds(self, seed):
        with pytest.raises(ValueError, match="^seed must be a whole number in 0 to 9"):
            compose(mean_exchange(), seed=seed)

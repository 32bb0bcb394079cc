"""A template for methods in which the server averages the clients' changes of a shared part.

With `W` the shared part, `p_i = n_i / sum n_j` over the cohort (or uniform), a round is

    down    W
    client  W_i, by the method's client work, and the client's new state
    up      W_i - W
    server  W <- W + sum_i p_i (W_i - W)                                      (= sum_i p_i W_i)

With a `server_optimizer`, the server's line is a step of that optimizer, with the negative mean
change as the gradient (Reddi et al., "Adaptive federated optimization", ICLR 2021): SGD with rate
1.0 is the line above, SGD with momentum is FedAvgM, Adam is FedAdam, and so on. With an
`aggregator`, its result replaces the mean.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.names import check_names
from tff_pfl.local import ClientContext, Examples, trees
from tff_pfl.local.optimizers import check_optimizer
from tff_pfl.models import Model
from tff_pfl.models.statistics import (
    with_statistics,
    with_valid_variances,
    without_statistics,
)
from tff_pfl.templates import errors
from tff_pfl.templates.algorithm import Algorithm, no_client_state
from tff_pfl.templates.exchange import Aggregator, ClientOutput, Exchange, Personalization
from tff_pfl.tracing.structures import type_of

WEIGHTINGS = ("num_examples", "uniform")

Weighting = str | Callable[[Examples], tf.Tensor]
"""The weights of clients: one of `WEIGHTINGS`, or a function; see `weighing`."""


class SharedPart(NamedTuple):
    """Server state.

    An algorithm whose server keeps more replaces `server_init` by a function whose state is a
    `NamedTuple` of these fields and others. `averaging` does not change the others.

    Attributes:
        weights: `W`, the shared part.
        optimizer: The state of the server's optimizer; `()` without one.
    """

    weights: Any
    optimizer: Any

    @classmethod
    def of(
        cls, weights: Any, server_optimizer: tff.learning.optimizers.Optimizer | None
    ) -> "SharedPart":
        """Makes the state before the first round."""
        optimizer = server_optimizer and server_optimizer.initialize(trees.specs(weights))
        return cls(weights, () if optimizer is None else optimizer)


def moved(
    server: Any, change: Any, server_optimizer: tff.learning.optimizers.Optimizer | None
) -> Any:
    """Moves the weights by a step of the server's optimizer, or by `change` without an optimizer.

    Moving statistics of batch normalisation always move by `change`, variances not below 0.

    Args:
        server: A `SharedPart`, or another `NamedTuple` with its fields.
        change: The mean change of its `weights`.
        server_optimizer: The server's optimizer, or `None`.
    """
    plain = with_valid_variances(trees.add(server.weights, change))
    if server_optimizer is None:
        return server._replace(weights=plain)
    optimizer, weights = server_optimizer.next(
        server.optimizer, server.weights, trees.scale(without_statistics(change), -1.0)
    )
    return server._replace(weights=with_statistics(weights, plain), optimizer=optimizer)


def averaging(
    server_init: Callable[[int], Any],
    client_work: Callable[[Any, Any, Examples, ClientContext], ClientOutput],
    personalize: Callable[[Any, Any, Examples, ClientContext], Any],
    client_init: Callable[[Any, int], Any] = no_client_state,
    global_weights: Callable[[Any], Any] | None = None,
    client_snapshot: Callable[[Any], Mapping[str, Any]] | None = None,
    evaluated_model: Model | None = None,
    global_model: Model | None = None,
    *,
    weighting: Weighting = "num_examples",
    aggregator: Aggregator | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> Algorithm:
    """Makes an algorithm whose server averages the clients' changes of a shared part.

    A method that passes `**options` on to this function should be decorated by
    `extends(averaging)`: it then takes the keyword arguments below, too.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> def client_work(weights, state, examples, context):
        ...     trained = local.train(model, weights, examples, context)
        ...     change = tff_pfl.trees.subtract(trained.weights, weights)
        ...     return tff_pfl.ClientOutput(state, upload=change, metrics=trained.totals)
        >>> fedavg = tff_pfl.averaging(model.init, client_work, lambda weights, *rest: weights)
        >>> fedavg.exchanges[0].name
        'train'

    Args:
        server_init: `(seed: int -> W)`, the initial shared part.
        client_work: `(W, C, D, ClientContext) -> ClientOutput`. Its `upload` is the change of the
            shared part, `W_i - W` (or a value that `aggregator` turns into a change of `W`). Its
            `weight` is set here.
        personalize: `(W, C, D, ClientContext) -> weights of a model`; see `Personalization`.
        client_init: See `Algorithm`.
        global_weights: `(W -> weights of a model)`, or `None`.
        client_snapshot: See `Algorithm`.
        evaluated_model: See `Algorithm`.
        global_model: See `Algorithm`.
        weighting: The weights of clients: their "num_examples", "uniform", or a function of their
            examples; see `weighing`.
        aggregator: A `tff.aggregators` factory; default the mean. An unweighted one gives all
            clients the same weight.
        server_optimizer: The optimizer of the server's step; `None`: the step is the mean change.
    """
    weigh = weighing(weighting)
    if server_optimizer is not None:
        check_optimizer("The server's optimizer", server_optimizer)

    def init(seed):
        return SharedPart.of(server_init(seed), server_optimizer)

    def weighted_client_work(weights, state, examples, context):
        output = client_work(weights, state, examples, context)
        if not isinstance(output, ClientOutput):
            return output  # the composer raises an error
        _check_weight(output)
        return output._replace(weight=weigh(examples))

    def finalize(server, change, round_num):
        del round_num
        errors.check_same_type(
            "client_work must upload the change of the shared part",
            type_of(server.weights),
            type_of(change),
            "trees.subtract(trained, weights) is the change of all of it.",
        )
        return moved(server, change, server_optimizer), collections.OrderedDict()

    def shared(server):
        return server.weights

    return Algorithm(
        server_init=init,
        client_init=client_init,
        exchanges=[
            Exchange(
                distribute=shared,
                client_work=weighted_client_work,
                aggregator=aggregator or tff.aggregators.MeanFactory(),
                finalize=finalize,
                averaged=shared,
            )
        ],
        personalize=Personalization(distribute=shared, client_work=personalize),
        global_weights=global_weights and (lambda server: global_weights(server.weights)),
        client_snapshot=client_snapshot,
        evaluated_model=evaluated_model,
        global_model=global_model,
    )


def _check_weight(output):
    default = ClientOutput._field_defaults["weight"]
    if not isinstance(output.weight, float) or output.weight != default:
        raise errors.BlockResultError(
            f"client_work returned weight={output.weight!r}, but `averaging` sets the weights of "
            "clients by its `weighting`. Leave the weight out; to reject a client, return an "
            "upload that is not finite, or write an `Exchange`."
        )


def weighing(weighting: Weighting) -> Callable[[Examples], tf.Tensor]:
    """Returns a function from a client's examples to its weight.

    Example:
        >>> weigh = tff_pfl.weighing("num_examples")
        >>> float(weigh(testing.tiny_examples(5)))
        5.0
        >>> weigh = tff_pfl.weighing(lambda examples: tf.sqrt(tf.cast(examples.size, tf.float32)))
        >>> float(weigh(testing.tiny_examples(4)))
        2.0

    Args:
        weighting: "num_examples", for `n_i`, in which each example counts as 1, whatever its
            weight in the data set; "uniform", for 1; or a pure TensorFlow function
            `(Examples -> float32 scalar)`. It must ignore rows after `Examples.size`, which are
            padding. A client whose weight is negative or not finite is left out of the round.

    Raises:
        UnknownNameError: `weighting` is another name.
    """
    if callable(weighting):
        return weighting
    check_names("weighting", [weighting], WEIGHTINGS)
    if weighting == "uniform":
        return lambda examples: tf.constant(1.0)
    return lambda examples: tf.cast(examples.size, tf.float32)

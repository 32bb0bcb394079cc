"""The template of methods whose clients change a shared part, the changes being averaged.

With `W` the shared part, `p_i = n_i / sum n_j` over the cohort (or uniform), a round is

    down    W
    client  W_i, by the method's client work, and whatever the client keeps for itself
    up      W_i - W
    server  W <- W + sum_i p_i (W_i - W)                                      (= sum_i p_i W_i)

With a `server_optimizer`, the server's last line is a step of that optimizer along the negative
mean change in the place of a gradient (Reddi et al., "Adaptive federated optimization", ICLR 2021):
SGD at 1.0 is the line above, SGD with momentum FedAvgM, Adam FedAdam, and so on. With another
`aggregator`, the mean is what that makes of the changes.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.kinds import check_kind
from tff_pfl.local import ClientContext, Examples, trees
from tff_pfl.names import check_names
from tff_pfl.templates import blocks, errors
from tff_pfl.templates.algorithm import Algorithm, no_client_state
from tff_pfl.templates.exchange import Aggregator, ClientOutput, Exchange, Personalization

WEIGHTINGS = ("num_examples", "uniform")


class SharedPart(NamedTuple):
    """Server state.

    An algorithm whose server keeps more replaces `server_init` by one whose state is a `NamedTuple`
    of these fields and others, which `averaging` leaves as they are.

    Attributes:
        weights: `W`, what clients share.
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
    """Moves the weights by a step of the server's optimizer; without one, by `change`.

    Args:
        server: A `SharedPart`, or another `NamedTuple` with its fields.
        change: Of its `weights`.
        server_optimizer: Its optimizer, or `None`.
    """
    if server_optimizer is None:
        return server._replace(weights=trees.add(server.weights, change))
    optimizer, weights = server_optimizer.next(
        server.optimizer, server.weights, trees.scale(change, -1.0)
    )
    return server._replace(weights=weights, optimizer=optimizer)


def averaging(
    server_init: Callable[[int], Any],
    client_work: Callable[[Any, Any, Examples, ClientContext], ClientOutput],
    personalize: Callable[[Any, Any, Examples, ClientContext], Any],
    client_init: Callable[[Any, int], Any] = no_client_state,
    global_weights: Callable[[Any], Any] | None = None,
    client_snapshot: Callable[[Any], Mapping[str, Any]] | None = None,
    *,
    weighting: str = "num_examples",
    aggregator: Aggregator | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> Algorithm:
    """Makes an algorithm of the template.

    A function that passes its `**options` on to this one, decorated by `extends(averaging)`, has
    the keyword arguments below as its own.

    Args:
        server_init: `(seed: int -> W)`, the initial shared part.
        client_work: `(W, C, D, ClientContext) -> ClientOutput`, whose `upload` is the change of the
            shared part, `W_i - W` (or what `aggregator` makes a change of `W` of); its weight is
            set here.
        personalize: `(W, C, D, ClientContext) -> weights of a model`; see `Personalization`.
        client_init: See `Algorithm`.
        global_weights: `(W -> weights of a model)`, or `None`.
        client_snapshot: See `Algorithm`.
        weighting: Clients weigh by "num_examples", or "uniform" weights.
        aggregator: A `tff.aggregators` factory; default the mean. An unweighted one weighs all
            clients the same.
        server_optimizer: Takes the step; `None`: the mean change is the step.
    """
    weigh = weighing(weighting)
    if server_optimizer is not None:
        tip = "tff.learning.optimizers.build_adam(0.01) makes one."
        kind = tff.learning.optimizers.Optimizer
        check_kind("The server's optimizer", server_optimizer, kind, tip)

    def init(seed):
        return SharedPart.of(server_init(seed), server_optimizer)

    def weighted_client_work(weights, state, examples, context):
        output = client_work(weights, state, examples, context)
        if not isinstance(output, ClientOutput):
            return output  # which the composer refuses
        _check_weight(output)
        return output._replace(weight=weigh(examples))

    def finalize(server, change, round_num):
        del round_num
        errors.check_same_type(
            "client_work must upload the change of the shared part",
            blocks.type_of(server.weights),
            blocks.type_of(change),
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
    )


def _check_weight(output):
    default = ClientOutput._field_defaults["weight"]
    if not isinstance(output.weight, float) or output.weight != default:
        raise errors.BlockResultError(
            f"client_work returned weight={output.weight!r}, but clients of `averaging` weigh by "
            "its `weighting`. Leave the weight out; to leave a client out, return an upload that "
            "is not finite, or write an `Exchange`."
        )


def weighing(weighting: str) -> Callable[[Examples], tf.Tensor]:
    """Returns the weight of a client as a function of its examples: `n_i`, or 1.

    Args:
        weighting: "num_examples" or "uniform".

    Raises:
        UnknownNameError: If it is neither.
    """
    check_names("weighting", [weighting], WEIGHTINGS)
    if weighting == "uniform":
        return lambda examples: tf.constant(1.0)
    return lambda examples: tf.cast(examples.size, tf.float32)

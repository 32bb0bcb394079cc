"""An algorithm as a value."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.arguments.digests import described
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.names import IN_PARTS, check_names, is_part
from tff_pfl.arguments.quantities import EVALUATED_MODELS
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model
from tff_pfl.output.tables import to_html
from tff_pfl.templates.exchange import Exchange, Personalization
from tff_pfl.templates.federation import ANY_FEDERATION, Federation
from tff_pfl.templates.report import REPORTS

# Names in the metrics of a round besides the names of its exchanges.
_NAMES_OF_METRICS = (
    *("round", "bytes_down_per_client", "bytes_up_per_client", "participation"),
    *("privacy", "num_clients_never_selected", *EVALUATED_MODELS),
)


class Ingredients(NamedTuple):
    """The ingredients of which `tff_pfl.make` made an algorithm.

    Attributes:
        model: The model that clients train.
        local: The local training.
        options: The other arguments of the algorithm, with the defaults of those left out.
    """

    model: Model
    local: LocalTraining
    options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: pure functions, of which `compose` makes a process.

    All functions are pure TensorFlow and can be called eagerly, one by one. `S` is the type of the
    server's state, `C` the type of a client's state, `W` the type of a model's weights. A function
    that modifies an algorithm takes an `Algorithm` and returns a new one.

    Attributes:
        server_init: `(seed: int -> S)`, the server's state before the first round. All of its
            numbers must be finite.
        client_init: `(<int32, seed: int> -> C)`, the state of a client that was never seen, from
            its id.
        exchanges: The exchanges of a round, in order, with distinct names.
        personalize: The `Personalization`, which makes a client's own model for evaluation.
        global_weights: `(S -> W)`, or `None` for an algorithm without a global model.
        snapshot: `(S -> V)`, the parts of the server's state to look at, as tensors by name; or
            `None`.
        client_snapshot: `(C -> V)`, the parts of a client's state to look at; or `None`.
        evaluated_model: The model whose weights `personalize` and `global_weights` return. If it
            is `None`, `tff_pfl.make` sets it to the model that clients train.
        global_model: The model whose weights `global_weights` returns, if it is another one. Both
            have the same task.
        report: The way in which the counts and measurements of a round are sent: summed in the
            "clear", by "secure" sums, or not at all ("none"). `None`: by secure sums if all
            uploads are, else in the clear.
        made_for: The sizes of the federation that the algorithm computes with. With `num_clients`,
            a round fails if a client's id is not in 0 .. `num_clients` - 1. `personalize` fails,
            too, if the server keeps something for each client.
        noise: The declared noise multiplier and the parts for which it holds, which
            `with_declared_noise` sets; `None` without privacy.
        name: The name for messages.
        made_of: The ingredients of the algorithm; `None` if `tff_pfl.make` did not make it.
    """

    server_init: Callable[[int], Any]
    client_init: Callable[[Any, int], Any]
    exchanges: Sequence[Exchange]
    personalize: Personalization
    global_weights: Callable[[Any], Any] | None = None
    snapshot: Callable[[Any], Mapping[str, Any]] | None = None
    client_snapshot: Callable[[Any], Mapping[str, Any]] | None = None
    evaluated_model: Model | None = None
    global_model: Model | None = None
    report: str | None = None
    made_for: Federation = ANY_FEDERATION
    noise: tuple[float, tuple] | None = None
    name: str = "the algorithm"
    made_of: Ingredients | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self):
        """Checks the parts."""
        named = "a tff_pfl.Personalization"
        check_kind("personalize", self.personalize, Personalization, named=named)
        for exchange in self.exchanges:
            check_kind("an exchange", exchange, Exchange, named="a tff_pfl.Exchange")
        names = [exchange.name for exchange in self.exchanges]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"exchanges must be one or more, with distinct names; got {names}.")
        for name in names:
            if not is_part(name) or name in _NAMES_OF_METRICS:
                raise ValueError(
                    f"An exchange cannot be called {name!r}: its metrics are NAME/..., besides "
                    f"{', '.join(_NAMES_OF_METRICS)}. Use {IN_PARTS}, as in 'train'."
                )
        if self.report is not None:
            check_names("report", [self.report], REPORTS)
        object.__setattr__(self, "exchanges", tuple(self.exchanges))

    @property
    def noise_multiplier(self) -> float | None:
        """The standard deviation of the noise in a sum of uploads, over the clipping norm.

        It is `None` without `noise`, or if a part for which that holds was replaced.
        """
        multiplier, holds_for = self.noise or (None, None)
        return multiplier if holds_for == self._told() else None

    def label(self, exchange: Exchange) -> str:
        """Returns the name of an exchange in messages."""
        return f"Exchange {exchange.name!r} of {self.name}"

    def with_declared_noise(self, multiplier: float) -> "Algorithm":
        """Declares the noise that aggregators and `send` add, and reports nothing else.

        Declare it last: replacing the report, an aggregator or `send` resets it to `None`.
        """
        quiet = dataclasses.replace(self, report="none")
        return dataclasses.replace(quiet, noise=(multiplier, quiet._told()))

    def _told(self) -> tuple:
        """Returns what decides how much the server is told of a client."""
        uploads = [(e.aggregator, e.send) for e in self.exchanges if e.aggregator is not None]
        return self.report, uploads

    def with_exchanges(self, change: Callable[[Exchange], Exchange]) -> "Algorithm":
        """Returns the algorithm with `change` applied to each exchange."""
        return dataclasses.replace(self, exchanges=tuple(map(change, self.exchanges)))

    def __repr__(self) -> str:
        """Returns the name and the options."""
        options = {} if self.made_of is None else self.made_of.options
        shown = ", ".join(f"{name}={described(value)!r}" for name, value in options.items())
        return f"<Algorithm {self.name}{': ' * bool(shown)}{shown}>"

    def _repr_html_(self) -> str:
        """Returns what the algorithm is made of and what it keeps, for notebooks."""
        rows = [["", ""]]
        if self.made_of is not None:
            model, local, options = self.made_of
            rows += [[name, str(described(value))] for name, value in options.items()]
            trained = {name: it for name, it in local.settings().items() if it not in (None, False)}
            rows.append(["local training", ", ".join(f"{n} {it}" for n, it in trained.items())])
            rows.append(["model", f"{model.name}, {model.num_weights:,} weights"])
        rows.append(["the server keeps", _size(lambda: self.server_init(0))])
        rows.append(["a client keeps", _size(lambda: self.client_init(tf.constant(0), 0))])
        return to_html(self.name, rows)


def _size(make: Callable[[], Any]) -> str:
    """Returns the size of the tensors that a function makes, in words."""
    made = tf.function(make, autograph=False).get_concrete_function().structured_outputs
    sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tf.nest.flatten(made)]
    return f"{sum(sizes) / 1000:,.1f} kB" if sum(sizes) else "nothing"


def evaluated_model(algorithm: Algorithm, name: str = "personalized") -> Model:
    """Returns the model whose weights an algorithm's functions make for evaluation.

    Args:
        algorithm: The algorithm.
        name: The evaluated model, one of `EVALUATED_MODELS`. All but "global" and
            "locally_trained" are clients' own.

    Raises:
        ValueError: The algorithm does not state it.
    """
    if algorithm.global_model is not None and name in ("global", "locally_trained"):
        return algorithm.global_model
    if algorithm.evaluated_model is None:
        raise ValueError(
            f"The evaluated_model of {algorithm.name} is not set. Make the algorithm by "
            "tff_pfl.make(FUNCTION, model, local), which sets it to the model that clients train, "
            "or set another one by dataclasses.replace(algorithm, evaluated_model=...)."
        )
    return algorithm.evaluated_model


def no_server_state(seed: int) -> tuple:
    """Returns `()`, the state of a server that keeps nothing."""
    del seed
    return ()


def no_client_state(client_id: tf.Tensor, seed: int) -> tuple:
    """Returns `()`, the state of a client that keeps nothing."""
    del client_id, seed
    return ()

"""An algorithm as a value."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.kinds import check_kind
from tff_pfl.models import Model
from tff_pfl.names import IN_PARTS, check_names, is_part
from tff_pfl.templates.exchange import Exchange, Personalization
from tff_pfl.templates.federation import ANY_FEDERATION, Federation
from tff_pfl.templates.report import REPORTS

# Names in the metrics of a round beside those of its exchanges.
_NAMES_OF_METRICS = (
    *("round", "bytes_down_per_client", "bytes_up_per_client", "participation"),
    *("privacy", "personalized", "global", "locally_trained", "fine_tuned"),
    *("fine_tuned_best_epoch", "num_clients_never_selected"),
)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: pure functions, of which `compose` makes a process.

    All are pure TensorFlow; `S` is the type of the server's state, `C` that of a client's, `W` that
    of a model's weights. They can be called eagerly, one by one. Whatever changes an algorithm from
    outside takes an `Algorithm` and returns another one.

    Attributes:
        server_init: `(seed: int -> S)`, the server's state before the first round, all of it
            finite.
        client_init: `(<int32, seed: int> -> C)`, the state of a client that was never seen, from
            its id.
        exchanges: Those of a round, in order, with distinct names.
        personalize: How a client's own model is made for evaluation.
        global_weights: `(S -> W)`, or `None` for an algorithm without a global model.
        snapshot: `(S -> V)`, tensors by name, for people to look at; or `None`.
        client_snapshot: `(C -> V)`, the same of a client's state.
        evaluated_model: The model of the weights `W` that `personalize` and `global_weights` give,
            where it is another than that which clients train; `None`: it is the same.
        report: How the counts and the measurements of a round travel: summed in the "clear", by
            "secure" sums, or not at all ("none"). `None`: by secure sums where all uploads do, else
            in the clear.
        made_for: The federation, as far as the algorithm computes with its numbers. With
            `num_clients`, a round fails if a client's id is not in 0 .. `num_clients` - 1, and so
            does `personalize`, if the server keeps something for each client.
        noise_multiplier: Standard deviation of the noise in a sum of uploads, over the clipping
            norm, which `privacy.PrivacyLoss` counts with; `None` without privacy. It holds for the
            report, the aggregators and the `send`s that it was set with; an algorithm with others
            forgets it. Set it after you change these.
        name: For messages.
    """

    server_init: Callable[[int], Any]
    client_init: Callable[[Any, int], Any]
    exchanges: Sequence[Exchange]
    personalize: Personalization
    global_weights: Callable[[Any], Any] | None = None
    snapshot: Callable[[Any], Mapping[str, Any]] | None = None
    client_snapshot: Callable[[Any], Mapping[str, Any]] | None = None
    evaluated_model: Model | None = None
    report: str | None = None
    made_for: Federation = ANY_FEDERATION
    noise_multiplier: float | None = None
    name: str = "the algorithm"
    _noise_holds_for: Any = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self):
        named = "a tff_pfl.Personalization"
        check_kind("personalize", self.personalize, Personalization, named=named)
        for exchange in self.exchanges:
            check_kind("an exchange", exchange, Exchange, named="a tff_pfl.Exchange")
        names = [exchange.name for exchange in self.exchanges]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"Need one exchange or more, with distinct names; got {names}.")
        for name in names:
            if not is_part(name) or name in _NAMES_OF_METRICS:
                raise ValueError(
                    f"An exchange cannot be called {name!r}: its metrics are NAME/..., beside "
                    f"{', '.join(_NAMES_OF_METRICS)}. Use {IN_PARTS}, as in 'train'."
                )
        if self.report is not None:
            check_names("report", [self.report], REPORTS)
        object.__setattr__(self, "exchanges", tuple(self.exchanges))
        self._forget_noise_of_others()

    def _forget_noise_of_others(self):
        """Forgets `noise_multiplier` if a part that it was set with has been replaced since."""
        uploads = [(e.aggregator, e.send) for e in self.exchanges if e.aggregator is not None]
        present = self.noise_multiplier, self.report, uploads
        before = self._noise_holds_for or present
        if before[0] == present[0] and before != present:
            present = None, *present[1:]
        object.__setattr__(self, "noise_multiplier", present[0])
        object.__setattr__(self, "_noise_holds_for", present if present[0] is not None else None)

    def with_exchanges(self, change: Callable[[Exchange], Exchange]) -> "Algorithm":
        """Returns the algorithm with `change` applied to each exchange."""
        return dataclasses.replace(self, exchanges=tuple(map(change, self.exchanges)))


def no_server_state(seed: int) -> tuple:
    """Returns the state of a server that keeps nothing."""
    del seed
    return ()


def no_client_state(client_id: tf.Tensor, seed: int) -> tuple:
    """Returns the state of a client that keeps nothing."""
    del client_id, seed
    return ()

"""Selectors, which choose the clients of a round among those that are available, by name.

A selector is a frozen dataclass that is called with the `KnownClients`. It sees only what a server
may know: sums of training metrics do not reveal a client's loss, so `losses` evaluates clients.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tff_pfl.arguments.digests import digest_of
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.arguments.registry import Registry

SELECTORS = Registry("selector")

Losses = Callable[[np.ndarray], np.ndarray]
"""A function from int `[k]` client ids to float64 `[k]`, the loss of each client."""


def no_losses(client_ids: np.ndarray) -> np.ndarray:
    """Raises a `ValueError`, for loops that give a selector no losses."""
    raise ValueError(
        "The selector needs clients' losses. Call `select` with `losses`, which "
        "`tff_pfl.evaluation.Evaluator.losses` computes."
    )


class History(NamedTuple):
    """The rounds in which clients have been in the cohort so far.

    Attributes:
        num_rounds: int32 `[clients]`, the number of these rounds of each client.
        last_round: int32 `[clients]`, the last of these rounds, from 0; -1 if there is no such
            round.
    """

    num_rounds: np.ndarray
    last_round: np.ndarray

    @classmethod
    def before_training(cls, num_clients: int) -> "History":
        """Returns the history before the first round."""
        return cls(np.zeros([num_clients], np.int32), np.full([num_clients], -1, np.int32))

    def after(self, round_num: int, cohort: np.ndarray) -> "History":
        """Returns the history after a round with a cohort of distinct clients."""
        num_rounds, last_round = self.num_rounds.copy(), self.last_round.copy()
        num_rounds[cohort] += 1
        last_round[cohort] = round_num
        return History(num_rounds, last_round)


class KnownClients(NamedTuple):
    """The server's knowledge of the clients that can be selected.

    Attributes:
        client_ids: int64 `[clients]`, the clients in ascending order.
        sizes: int64 `[clients]`, their numbers of training examples.
        num_rounds: int32 `[clients]`, see `History`.
        last_round: int32 `[clients]`, see `History`.
        losses: `(int [k] -> float64 [k])`, the mean loss of the current global model on all
            training examples of each client; NaN for a client without examples. It sends the model
            to these clients, so a selector that calls it has `needs_losses`.
    """

    client_ids: np.ndarray
    sizes: np.ndarray
    num_rounds: np.ndarray
    last_round: np.ndarray
    losses: Losses

    def at(self, rows: np.ndarray) -> "KnownClients":
        """Returns the clients in some of the rows."""
        chosen = {name: getattr(self, name)[rows] for name in self._fields[:-1]}
        return self._replace(**chosen)


class Selector:
    """The base class of selectors, which are frozen dataclasses.

    Attributes:
        needs_losses: Whether the selector calls `KnownClients.losses`.
    """

    needs_losses: ClassVar[bool] = False

    def check(self, number: int) -> None:
        """Raises a `ValueError` if the selector can never choose `number` clients."""

    def __call__(self, clients: KnownClients, number: int, rng: np.random.Generator) -> np.ndarray:
        """Returns the ids of `number` distinct clients.

        Args:
            clients: The clients that can be selected.
            number: The number of clients to select, at most all of them.
            rng: The generator of the round, a function of the seed and the round.

        Returns:
            int `[number]`. Clients that report at the same time count in this order.
        """
        raise NotImplementedError


@SELECTORS.register("uniform")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform(Selector):
    """A selector that draws all clients with the same probability, without replacement."""

    def __call__(self, clients: KnownClients, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draws the clients."""
        return rng.choice(clients.client_ids, number, replace=False)


@SELECTORS.register("by_size")
@dataclasses.dataclass(frozen=True, kw_only=True)
class BySize(Selector):
    """A selector that draws clients in proportion to their sizes, without replacement.

    Clients without training examples are only drawn if no others are left.
    """

    def __call__(self, clients: KnownClients, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draws one client after another; the first has the probability `n_i / sum_j n_j`."""
        # The least of exponential times with rates n_i is client i's with this probability.
        units = rng.exponential(size=len(clients.sizes))
        with np.errstate(divide="ignore"):
            times = units / clients.sizes
        return clients.client_ids[np.lexsort((units, times))[:number]]


@SELECTORS.register("power_of_choice")
@takes(candidates=whole(1))
@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Selector):
    """A selector of clients with a large loss.

    Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning",
    AISTATS 2022, with the name pow-d. In each round

    1. the server draws `candidates` clients in proportion to their sizes, as `BySize` does;
    2. each candidate receives the global model and sends its mean loss on all training examples;
    3. the candidates with the largest losses are selected; equal losses are sorted by id.

    The paper averages the models of a cohort with equal weights: use `weighting="uniform"`.

    Attributes:
        candidates: `d`, the number of candidates, at least the number of selected clients. Losses
            have no influence if both numbers are equal.
    """

    needs_losses: ClassVar[bool] = True
    candidates: int

    def check(self, number: int) -> None:
        """Checks that there are enough candidates."""
        if self.candidates < number:
            raise ValueError(
                f"candidates={self.candidates}, but {number} clients are selected among them. "
                f"Choose {number} or more."
            )

    def __call__(self, clients: KnownClients, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draws candidates and returns those with the largest losses."""
        drawn = BySize()(clients, min(self.candidates, len(clients.client_ids)), rng)
        losses = clients.losses(drawn)
        losses = np.where(np.isnan(losses), -np.inf, losses)
        return drawn[np.lexsort((drawn, -losses))[:number]]


def check_selector(selector: Any) -> None:
    """Checks that a value is a selector that can be compared when a run is resumed.

    Raises:
        KindError: See `digest_of`.
        ValueError: It is not an instance of a dataclass that extends `Selector`.
    """
    if not isinstance(selector, Selector) or not dataclasses.is_dataclass(selector):
        raise ValueError(
            f"selector={selector!r} must be an instance of a frozen dataclass that extends "
            "tff_pfl.clients.Selector."
        )
    digest_of(selector)


def selected(
    selector: Selector, clients: KnownClients, number: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the clients that a selector chooses.

    Raises:
        ValueError: The selector does not return `number` distinct ids of `clients`.
    """
    chosen = np.asarray(selector(clients, number, rng))
    is_sound = chosen.dtype.kind in "iu" and chosen.shape == (number,)
    if not is_sound or len(np.intersect1d(chosen, clients.client_ids)) != number:
        raise ValueError(
            f"{selector} returns {chosen}, but must return {number} distinct ids of the "
            f"{len(clients.client_ids)} available clients."
        )
    return chosen.astype(np.int64)

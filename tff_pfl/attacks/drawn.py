"""Draws the clients that attack."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_pfl.arguments.ranges import between, takes, whole

# The stream of random numbers of a run's seed that is used for attackers only.
_STREAM = 0x477A


@takes(fraction=between(0, 1), num_clients=whole(1), seed=whole(0))
def drawn_attackers(fraction: float, num_clients: int, seed: int) -> tuple[int, ...]:
    """Draws the ids of a fraction of the clients, in ascending order.

    A larger fraction includes the clients of a smaller one.

    Args:
        fraction: The fraction, rounded to whole clients, at least one; 0 selects nobody.
        num_clients: The number of clients; ids are 0..num_clients-1.
        seed: The seed of the draw.
    """
    number = max(1, round(fraction * num_clients)) if fraction else 0
    order = np.random.default_rng([seed, _STREAM]).permutation(num_clients)
    return tuple(sorted(order[:number].tolist()))


def attackers_of(attack: Mapping[str, Any], num_clients: int, seed: int) -> tuple[int, ...]:
    """Returns the ids of the attackers of a config, in ascending order.

    Args:
        attack: The section `attack` of the config, with `client_ids` or a `fraction` of clients.
        num_clients: The number of clients that train.
        seed: The seed of the config.
    """
    if attack.get("fraction"):
        return drawn_attackers(attack["fraction"], num_clients, seed)
    return tuple(sorted(attack.get("client_ids", ())))

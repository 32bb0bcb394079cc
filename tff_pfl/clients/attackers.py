"""Draws which clients attack."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_pfl.ranges import between, takes, whole

# Of the seed of a run, the numbers that attackers are drawn by: nothing else is drawn by them.
_STREAM = 0x477A


@takes(fraction=between(0, 1), num_clients=whole(1), seed=whole(0))
def drawn_attackers(fraction: float, num_clients: int, seed: int) -> tuple[int, ...]:
    """Returns the ids of a share of the clients, in ascending order.

    The ids of a smaller share are among those of a larger one.

    Args:
        fraction: The share, rounded to the nearest number of clients, but one at least; 0 is none.
        num_clients: Ids are below it.
        seed: The seed of the draw.
    """
    number = max(1, round(fraction * num_clients)) if fraction else 0
    order = np.random.default_rng([seed, _STREAM]).permutation(num_clients)
    return tuple(sorted(order[:number].tolist()))


def attackers_of(attack: Mapping[str, Any], num_clients: int, seed: int) -> tuple[int, ...]:
    """Returns the ids of the attackers of a config, in ascending order.

    Args:
        attack: Its section `attack`: `client_ids`, or a `fraction` of all clients.
        num_clients: Clients that train.
        seed: The seed of the config.
    """
    if attack.get("fraction"):
        return drawn_attackers(attack["fraction"], num_clients, seed)
    return tuple(sorted(attack.get("client_ids", ())))

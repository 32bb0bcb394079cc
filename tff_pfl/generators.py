"""The generators of random numbers that a whole process shares, and that no seed of ours sets."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np


def made_of_shared_draws(make: Callable[[], Any], comparable: Callable[[Any], Any]) -> tuple:
    """Makes a value, and finds whether it depends on NumPy's or Python's own generator.

    Any thread may draw from them meanwhile. So if they have moved, the value is made a second time,
    and depends on them if it differs.

    Args:
        make: Makes the value.
        comparable: Maps a value to one that `==` compares.

    Returns:
        `(value, depends)`.
    """
    before = _states()
    value = make()
    moved = _states() != before
    return value, moved and comparable(make()) != comparable(value)


def _states():
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tobytes(), rest

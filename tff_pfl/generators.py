"""NumPy's and Python's global random generators, which no seed of ours controls."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np


def made_of_shared_draws(make: Callable[[], Any], comparable: Callable[[Any], Any]) -> tuple:
    """Makes a value, and finds whether it depends on NumPy's or Python's global generator.

    If a generator has moved meanwhile, perhaps by another thread, the value is made a second time
    and depends on the generators if it differs.

    Args:
        make: Makes the value.
        comparable: Maps a value to one that `==` compares.

    Returns:
        `(value, depends)`.
    """
    before = _states()
    value = make()
    depends = _states() != before and comparable(make()) != comparable(value)
    return value, depends


def _states():
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tobytes(), rest

"""Detects values that depend on NumPy's or Python's global random generators."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np


def made_of_shared_draws(make: Callable[[], Any], comparable: Callable[[Any], Any]) -> tuple:
    """Makes a value, and finds whether it depends on NumPy's or Python's global random generator.

    If a generator's state changes meanwhile, perhaps in another thread, the value is made again. It
    depends on the generators if the second value differs.

    Args:
        make: Makes the value.
        comparable: Maps a value to an object that `==` can compare.

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

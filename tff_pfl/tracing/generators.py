"""Detects values that depend on NumPy's or Python's global random generators."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np


def uses_global_randomness(make: Callable[[], Any], comparable: Callable[[Any], Any]) -> tuple:
    """Calls `make`, twice if needed, to detect draws from a global generator.

    If the state of NumPy's or Python's generator changes meanwhile, perhaps by another thread, the
    value is made again. It depends on the generators if the second value differs.

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

"""The generators of random numbers that a whole process shares, and that no seed of ours sets."""

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_STATES = ("get_state", "getstate", "set_state", "setstate", "seed")  # no draws


def made_of_shared_draws(make: Callable[[], Any], comparable: Callable[[Any], Any]) -> tuple:
    """Makes a value, and finds whether it depends on NumPy's or Python's own generator.

    Any thread may draw from them meanwhile. So if they have moved, the value is made a second time,
    and depends on them if it differs, or if this thread draws.

    Args:
        make: Makes the value.
        comparable: Maps a value to one that `==` compares.

    Returns:
        `(value, depends)`.
    """
    before = _states()
    value = make()
    if _states() == before:
        return value, False
    again, draws = _watched(make)
    return value, draws or comparable(again) != comparable(value)


def _states():
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tobytes(), rest


def _watched(make):
    """Makes a value; returns it, and whether this thread draws from a shared generator for it."""
    shared, draws = (random._inst, np.random.mtrand._rand), []

    def profile(frame, event, arg):
        if event == "c_call" and any(getattr(arg, "__self__", None) is of for of in shared):
            draws.append(arg.__name__)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        value = make()
    finally:
        sys.setprofile(before)
    return value, any(name not in _STATES for name in draws)

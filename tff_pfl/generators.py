"""The generators of random numbers that all of a process shares, and that no seed of ours sets."""

import random
from typing import Any

import numpy as np


def shared_generators() -> Any:
    """The states of NumPy's and Python's own; others after something has drawn from them."""
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tobytes(), rest

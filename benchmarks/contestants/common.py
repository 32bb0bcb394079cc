"""Code that all contestants share: arguments, data, and the protocol of turns.

The code runs in the Python of a framework, where this library may be missing. Contestant and driver
exchange lines:

    {"versions": {...}, "num_weights": 878538}   the contestant is ready for its first round
    round                                        the driver requests one more round
    8.91                                         the round took this number of seconds
"""

import json
import os
import sys
import time
import types
from importlib import metadata

import numpy as np

NUM_CLASSES = 10
IMAGE_SHAPE = (32, 32, 3)


def arguments():
    """Reads the method, the checkout and the sizes of the work from the command line."""
    return types.SimpleNamespace(**json.loads(sys.argv[1]))


def data(work):
    """Returns noise that is brighter by class, `uint8[clients, examples, 32, 32, 3]`, and labels.

    The labels are int64.
    """
    rng = np.random.default_rng(work.seed)
    y = rng.integers(NUM_CLASSES, size=(work.clients, work.examples_per_client))
    x = rng.integers(0, 128, (*y.shape, *IMAGE_SHAPE), np.uint8)
    x += (12 * y).astype(np.uint8)[..., None, None, None]
    return x, y


def scaled(x):
    """Scales images to float32 in [0, 1]."""
    return x.astype(np.float32) / 255


class Turns:
    """The rounds of a contestant, each on request of the driver."""

    def __init__(self):
        """Reserves stdout for answers, and redirects a framework's output to stderr."""
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start = None

    def ready(self, num_weights, *packages, **versions):
        """Reports to the driver that the first round can begin.

        Args:
            num_weights: The number of the model's weights.
            *packages: The packages whose versions to report.
            **versions: Further versions, by names that are not packages.
        """
        versions = {name: metadata.version(name) for name in packages} | versions
        self._say({"versions": versions, "num_weights": num_weights})

    def next(self):
        """Ends the current round, if there is one, and waits until the driver requests another.

        Raises:
            SystemExit: The driver requests no more rounds.
        """
        if self._start is not None:
            self._say(time.perf_counter() - self._start)
        if not sys.stdin.readline():
            raise SystemExit
        self._start = time.perf_counter()

    def take(self, one_round):
        """Runs a function once for each round that the driver requests."""
        while True:
            self.next()
            one_round()

    def before_each(self, function):
        """Wraps a function that a framework calls at the beginning of each round."""

        def wait_and_call(*args, **kwargs):
            self.next()
            return function(*args, **kwargs)

        return wait_and_call

    def _say(self, answer):
        print(json.dumps(answer), file=self._answers, flush=True)

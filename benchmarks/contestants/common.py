"""Code that all contestants share: arguments, data, and the protocols of turns.

The code runs in the Python of a framework, where this library may be missing. Contestant and driver
exchange lines:

    {"versions": {...}, "num_weights": 878538}   the contestant is ready for its first round
    round                                        the driver requests one more round
    {"seconds": 8.91, "cpu_seconds": 17.2}       the time of the round, and that of the processor

Contestants that `serve` know several ways to compute a round. Their lines are:

    {"versions": {...}, "device": "H200"}        the contestant is ready
    {"method": "vmap", "work": {...}}            the driver requests a round of this work
    {"seconds": 0.02, "loss": 2.3, "first": true} the round's time and mean training loss, and
                                                 whether it was the first one with this work
    {"error": "..."}                             the round failed
"""

import gc
import json
import os
import sys
import time
import traceback
import types
from importlib import metadata

import numpy as np

NUM_CLASSES = 10
IMAGE_SHAPE = (32, 32, 3)
# The image shape and the shapes of kernels of the networks that all contestants have.
NETWORKS = {
    "linear": ((28, 28, 1), ((784, 10),)),
    "mlp": ((28, 28, 1), ((784, 200), (200, 200), (200, 10))),
    "cnn": (IMAGE_SHAPE, ((5, 5, 3, 32), (5, 5, 32, 64), (1600, 512), (512, 10))),
}


def arguments():
    """Reads the method, the checkout and the sizes of the work from the command line."""
    return types.SimpleNamespace(**json.loads(sys.argv[1]))


def scaled(x):
    """Scales images to float32 in [0, 1]."""
    return x.astype(np.float32) / 255


class Turns:
    """The rounds of a contestant, each on request of the driver."""

    def __init__(self, has_workers=False):
        """Reserves stdout for answers, and redirects a framework's output to stderr.

        Args:
            has_workers: Whether other processes compute, whose processor time is not known.
        """
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._clocks = {"seconds": time.perf_counter}
        if not has_workers:
            self._clocks["cpu_seconds"] = time.process_time
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
            now = self._read_clocks()
            self._say({name: now[name] - start for name, start in self._start.items()})
        if not sys.stdin.readline():
            raise SystemExit
        self._start = self._read_clocks()

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

    def _read_clocks(self):
        return {name: clock() for name, clock in self._clocks.items()}

    def _say(self, answer):
        print(json.dumps(answer), file=self._answers, flush=True)


def lognormal_sizes(number, mean, sigma=1.0, seed=0):
    """Returns the sizes of clients, int32 `[number]`, at least 1; equal if `sigma` is 0."""
    sizes = np.random.default_rng(seed).lognormal(0, sigma, number)
    return np.maximum(np.rint(sizes * mean / sizes.mean()), 1).astype(np.int32)


def client_data(work, image_shape=None):
    """Returns the images `uint8[size, ...]` and the labels int64 `[size]` of each client.

    An image is the prototype of its class and noise.

    Args:
        work: The number of clients, the mean of their sizes, and `sigma`, the spread of these.
        image_shape: The shape of an image; by default that of the work's network.
    """
    image_shape = image_shape or NETWORKS[work.network][0]
    rng = np.random.default_rng(0)
    sizes = lognormal_sizes(work.clients, work.examples_per_client, work.sigma)
    prototypes = rng.integers(0, 128, (NUM_CLASSES, *image_shape), np.uint8)
    y = [rng.integers(NUM_CLASSES, size=size) for size in sizes]
    x = [rng.integers(0, 128, (len(of), *image_shape), np.uint8) + prototypes[of] for of in y]
    return x, y


def padded(arrays):
    """Returns the arrays of all clients as a stack, padded with zeros to the longest."""
    length = max(map(len, arrays))
    return np.stack([np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in arrays])


def initial_weights(network):
    """Returns the same initial weights for all contestants: kernel, bias, kernel, bias, ..."""
    rng, weights = np.random.default_rng(0), []
    for shape in NETWORKS[network][1]:
        kernel = rng.normal(0, np.prod(shape[:-1]) ** -0.5, shape)
        weights += [kernel.astype(np.float32), np.zeros(shape[-1], np.float32)]
    return weights


def serve(methods, versions, device, measure=dict):
    """Answers requests for rounds until the driver ends.

    Args:
        methods: A function from a method and the work to a function that computes a round and
            returns the round's mean training loss.
        versions: The versions of the framework.
        device: The name of the device that computes.
        measure: Called after each round; returns further figures of it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"versions": versions, "device": device}), file=answers, flush=True)
    rounds, last = {}, None
    for line in sys.stdin:
        request = json.loads(line)
        if request["work"] != last:
            rounds, last = {}, request["work"]
            gc.collect()
        answer = _answer(rounds, methods, request["method"], types.SimpleNamespace(**last), measure)
        print(json.dumps(answer), file=answers, flush=True)


def _answer(rounds, methods, method, work, measure):
    start, is_first = time.perf_counter(), method not in rounds
    try:
        if is_first:
            rounds[method] = methods(method, work)
        loss = rounds[method]()
        answer = {"seconds": time.perf_counter() - start, "loss": loss, "first": is_first}
        return answer | measure()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error).strip()[-300:]}"}

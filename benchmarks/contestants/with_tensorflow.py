"""Serves rounds of FedAvg of this library, and of TensorFlow alone, in one precision.

    with_tensorflow.py float32|tf32|bfloat16

A method is words that are joined by "+":

    bare                a loop over clients in one `tf.function`, without this library
    loop                clients one by one
    stacked             all clients side by side
    stacked_of_N        at most N clients side by side
    xla                 compiled by XLA
    KEY of CONVOLUTIONS how convolutions are computed whose filters differ by client
"""

import pathlib
import sys

import common

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import functools
import logging

import absl.logging
import tensorflow as tf

from benchmarks.contenders import bare_keras, bare_tensorflow
from benchmarks.gpu.memory import peak_mib, reset_peak
from benchmarks.unequal import fedavg
from benchmarks.workloads import Images
from tff_pfl.runtime import create_graph_context
from tff_pfl.runtime.graph.clients.pfor_convolutions import GROUPED, PATCHES, forced

# The ways of convolutions whose filters differ by client, and a context that forces each of them.
CONVOLUTIONS = {way: functools.partial(forced, way) for way in (GROUPED, PATCHES)}
_MODELS = {"linear": "mlp", "cnn": "cnn_pgfed"}


class StartedImages(Images):
    """Images with the initial weights of all contestants."""

    def model(self):
        """Returns the network as a pure model; ResNets start from their own initial weights."""
        model = super().model()
        if self.network not in _MODELS.values():
            return model
        name = next(name for name, network in _MODELS.items() if network == self.network)
        given = iter(common.initial_weights(name))
        start = {layer: {w: next(given) for w in own} for layer, own in model.init(0).items()}
        return model.starting_from(start)


def workload_of(work, precision):
    """Returns the workload of a request; `work.options` are options of the network."""
    shape = common.NETWORKS[work.network][0] if work.network in _MODELS else common.IMAGE_SHAPE
    return StartedImages(
        work.clients,
        work.examples_per_client,
        work.batch_size,
        work.learning_rate,
        work.epochs,
        network=_MODELS.get(work.network, work.network),
        options={"hidden": ()} if work.network == "linear" else work.options,
        image_shape=shape,
        compute_type="bfloat16" if precision == "bfloat16" else "float32",
    )


def build(method, work, precision):
    """Returns a function that computes one more round, and returns its mean training loss."""
    workload = workload_of(work, precision)
    x, y = common.client_data(work, workload.image_shape)
    y = [labels.astype("int32") for labels in y]
    first, *words = method.split("+")
    reset_peak()
    if first == "bare":
        bare = bare_tensorflow if work.network in _MODELS else bare_keras
        return bare(workload, x, y)
    context = create_graph_context(
        vectorize="never" if first == "loop" else "always",
        jit_compile="xla" in words,
        max_concurrent_clients=int(first.partition("_of_")[2] or 0) or None,
    )
    run = fedavg(workload, (x, y), context, None)
    force = next((CONVOLUTIONS[word] for word in words if word in CONVOLUTIONS), None)
    return _within(force, run) if force else run


def _within(context, run):
    def run_within():
        with context():
            return run()

    return run_within


class Warnings(logging.Handler):
    """Collects warnings, such as of client work that is not computed as it was asked for."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self._messages = []

    def emit(self, record):
        self._messages.append(record.getMessage()[:300])

    def take(self):
        """Returns the warnings since the last call, as figures of a round."""
        messages, self._messages = self._messages, []
        return {"warnings": messages} if messages else {}


def main(precision):
    warnings = Warnings()
    absl.logging.get_absl_logger().addHandler(warnings)
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu)["device_name"] for gpu in gpus]
    common.serve(
        lambda method, work: build(method, work, precision),
        {"tensorflow": tf.__version__},
        details[0] if details else "CPU",
        lambda: {"memory_mib": peak_mib()} | warnings.take(),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What a local step of pFedMB costs, beside one of the same network without branches."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.figures import spread
from benchmarks.workloads import SEED, Workload
from tff_pfl import models
from tff_pfl.local import ClientContext, Examples, LocalTraining


def measure_branches(workload: Workload, branches: int, *, rounds: int) -> Iterator[dict[str, Any]]:
    """Records of the seconds of a local step: an ordinary one, one of the branches, one of alpha.

    Args:
        workload: Model and data, of which one client is trained.
        branches: `B`.
        rounds: How often each kind of training is done, in turns, after one time that is not
            counted.
    """
    model = workload.model()
    branched = models.multi_branch(model, branches)
    weights, alpha = branched.init(SEED), branched.uniform()
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(workload.learning_rate),
        epochs=workload.epochs,
        batch_size=workload.batch_size,
    )
    images, labels = workload.data()
    examples = Examples(images[0], labels[0], np.int32(workload.examples_per_client))
    context = ClientContext(tf.constant(0), tf.constant(0), tf.constant([SEED, 0]))

    def training(trained_model, start):
        train = tf.function(
            lambda start, examples: local.train(trained_model, start, examples, context).weights
        )
        return lambda: train(start, examples)

    kinds = {
        "ordinary": training(model, model.init(SEED)),
        "branches": training(branched.weights_model(alpha), weights),
        "alpha": training(branched.alpha_model(weights), alpha),
    }
    steps = workload.epochs * -(-workload.examples_per_client // workload.batch_size)
    seconds = {kind: [] for kind in kinds}
    for turn in range(1 + rounds):
        for kind, train in kinds.items():
            start = time.perf_counter()
            tf.nest.map_structure(np.asarray, train())
            if turn:
                seconds[kind].append((time.perf_counter() - start) / steps)
    measured = {kind: spread(values) for kind, values in seconds.items()}
    for kind, of_step in measured.items():
        yield {
            "step": kind,
            "network": workload.network,
            "branches": 1 if kind == "ordinary" else branches,
            "batch_size": workload.batch_size,
            "seconds_per_step": of_step,
            "times_ordinary": round(of_step["median"] / measured["ordinary"]["median"], 3),
        }

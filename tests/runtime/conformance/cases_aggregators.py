"""Aggregators of `tff.aggregators` and `tff.learning`, and analytics, over two rounds."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.catalogue import Catalogue, Run

case = Catalogue()

aggregators = tff.aggregators

VALUE = tff.types.to_type(
    collections.OrderedDict(kernel=tff.types.TensorType(np.float32, (3, 2)), bias=[np.float32])
)
WEIGHT = tff.types.TensorType(np.float32)
NUM_CLIENTS = 4


def values(seed: int):
    rng = np.random.default_rng(seed)
    return [
        collections.OrderedDict(
            kernel=rng.normal(size=(3, 2)).astype(np.float32), bias=[np.float32(n)]
        )
        for n in range(NUM_CLIENTS)
    ]


def two_rounds(process) -> Run:
    weights = [np.float32(n + 1) for n in range(NUM_CLIENTS)] if process.is_weighted else None

    def run():
        outputs = [process.initialize()]
        state = outputs[0]
        for seed in range(2):
            arguments = [values(seed)] if weights is None else [values(seed), weights]
            outputs.append(process.next(state, *arguments))
            state = outputs[-1].state
        return outputs

    return Run(run)


UNWEIGHTED = {
    "clipped": lambda: aggregators.clipping_factory(1.0, aggregators.SumFactory()),
    "zeroed": lambda: aggregators.zeroing_factory(1.5, aggregators.SumFactory()),
    "secure": lambda: aggregators.SecureSumFactory(4.0, -4.0),
    "concatenated": lambda: aggregators.concat_factory(aggregators.SumFactory()),
    "private": lambda: aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        noise_multiplier=0.0, clients_per_round=NUM_CLIENTS, clip=0.5
    ),
}


@case(name=list(UNWEIGHTED))
def aggregator(name):
    return two_rounds(UNWEIGHTED[name]().create(VALUE))


@case()
def aggregator_mean():
    return two_rounds(aggregators.MeanFactory().create(VALUE, WEIGHT))


@case(slow=True)
def aggregator_robust():
    aggregator = tff.learning.robust_aggregator(zeroing=True, clipping=True)
    return two_rounds(aggregator.create(VALUE, WEIGHT))


@case(slow=True)
def aggregator_secure_with_estimated_bound():
    bound = aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.8, 1.0)
    return two_rounds(aggregators.SecureSumFactory(bound).create(VALUE))


@case(slow=True)
def heavy_hitters():
    """Strings and how often clients have them, from sketches that are summed."""
    computation = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=10, string_max_bytes=8, max_heavy_hitters=3, seed=1
    )
    clients = [["red", "blue"], ["red"], ["green", "red", "blue"]]

    def run():
        data = [tf.data.Dataset.from_tensor_slices(words).batch(1) for words in clients]
        result = computation(data)
        found = zip(result.heavy_hitters, result.heavy_hitters_counts, strict=True)
        return sorted(found), result.num_not_decoded  # they are found in no order

    gives = [(b"blue", np.int64(2)), (b"green", np.int64(1)), (b"red", np.int64(3))]
    return Run(run, gives=(gives, np.int64(0)))

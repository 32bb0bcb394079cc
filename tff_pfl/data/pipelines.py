"""Checks the `tf.data` pipelines of clients, which are read once."""

from collections.abc import Iterator, Mapping
from typing import Any

import absl.logging
import tensorflow as tf

from tff_pfl.data.checks import ExamplesError
from tff_pfl.tracing.randomness import draws_without_seed


def check_pipelines(datasets: Mapping[int | str, tf.data.Dataset]) -> None:
    """Checks that clients' data sets end, and give the same examples at every reading.

    Examples that are repeated are warned of.

    Raises:
        ExamplesError: A data set never ends, or has random numbers without a seed.
    """
    repeated = {}
    for client, dataset in datasets.items():
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ExamplesError(
                f"The data set of client {client!r} never ends. Leave out repeat(), and set the "
                "number of epochs in LocalTraining."
            )
        for step in _steps(dataset):
            if _is_unseeded(step):
                raise ExamplesError(
                    f"The data set of client {client!r} is shuffled or changed at random without a "
                    "seed, so that every reading gives other examples. Leave out shuffle, because "
                    "local training draws its own orders, or pass a seed: shuffle(1000, seed=1)."
                )
            if type(step).__name__ == "_RepeatDataset" and (count := int(step._count)) > 1:
                repeated[client] = count
    if repeated:
        client, count = next(iter(repeated.items()))
        absl.logging.warning(
            "The data set of client %r repeats its examples %d times%s, and each copy counts as an "
            "example. Leave out repeat, and set the number of epochs in LocalTraining.",
            *(client, count, f", {len(repeated) - 1} others too" if len(repeated) > 1 else ""),
        )


def _steps(dataset) -> Iterator[tf.data.Dataset]:
    """Yields a data set and those of which it is made."""
    yield dataset
    for before in dataset._inputs():
        yield from _steps(before)


def _is_unseeded(step) -> bool:
    seeds: list[Any] = [getattr(step, name, None) for name in ("_seed", "_seed2")]
    has_no_seed = all(tf.is_tensor(seed) and not int(seed) for seed in seeds)
    functions = [wrapper.function.graph for wrapper in step._functions()]
    return has_no_seed or any(map(draws_without_seed, functions))

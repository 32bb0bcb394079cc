"""Shares the processes of configs and their evaluations, which take most of the time of tiny runs.

They are pure functions of their arguments, so that runs can share them. The tests of
`tests/config/test_build.py` build their own processes.
"""

import contextlib
import functools
import json
from collections.abc import Iterator

import pytest

# The sections that determine an algorithm and its model.
_SECTIONS = (
    *("algorithm", "local", "server", "aggregator", "compression", "privacy", "attack"),
    *("model", "task", "seed", "clients_per_round"),
)


@contextlib.contextmanager
def shared_processes() -> Iterator[None]:
    """Makes runs and evaluations in its body share processes and their evaluations."""
    from tff_pfl.config import build  # imported after the process is prepared
    from tff_pfl.evaluation import evaluator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "build_algorithm", _once(build.build_algorithm, _key_of_algorithm))
        patch.setattr(evaluator, "for_each_client", _once(evaluator.for_each_client, _key_of_map))
        yield


def _once(build, key_of):
    built = {}

    @functools.wraps(build)
    def build_once(*args, **options):
        key = key_of(*args, **options)
        if key is None:
            return build(*args, **options)
        if key not in built:
            # The arguments are kept, so that no other ones get their ids.
            built[key] = build(*args, **options), args
        return built[key][0]

    return build_once


def _key_of_map(process, fn, models=None, *, at_a_time) -> tuple | None:
    return (id(process), fn, at_a_time) if models is None else None


def _key_of_algorithm(config, model, dataset) -> str | None:
    from tff_pfl.experiment.run_directory import resolved
    from tff_pfl.local import rows_of_batch

    if config.imports:  # other tests may use the same names for other modules
        return None
    settings = resolved(config)
    return json.dumps(
        [
            *(settings[section] for section in _SECTIONS),
            settings["data"]["normalization"],
            settings["participation"]["sampling"],  # determines the largest cohort
            settings["privacy"]["epsilon"] and settings["rounds"],  # determine the noise
            [dataset.num_clients, dataset.num_classes, dataset.image_shape, str(dataset.x_dtype)],
            rows_of_batch(config.local.batch_size, int(dataset.sizes().max())),
        ]
    )

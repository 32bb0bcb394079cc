"""Shares the models and processes of configs, which take most of the time of tiny runs.

They are pure functions of their arguments, so that runs can share them. The tests of
`tests/config/test_build.py` build their own processes.
"""

import contextlib
import functools
import json
from collections.abc import Iterator

import pytest

# The sections that determine a process and its model.
_SECTIONS = (
    *("algorithm", "local", "server", "aggregator", "compression", "privacy", "attack"),
    *("model", "task", "seed"),
)
_TUNING = ("fine_tune_epochs", "fine_tune_learning_rate", "further_models")


@contextlib.contextmanager
def shared_processes() -> Iterator[None]:
    """Makes runs and evaluations in its body share models, processes and their evaluations."""
    from tff_pfl import config as configs  # imported after the process is prepared
    from tff_pfl import evaluation

    with pytest.MonkeyPatch.context() as patch:
        evaluator = evaluation.evaluator
        patch.setattr(configs.build, "build_model", _once(configs.build.build_model, _key_of_model))
        build_process = _once(configs.build.build_process, _key_of_process)
        patch.setattr(configs.build, "build_process", build_process)
        for_each_client = _once(evaluator.for_each_client, _key_of_map)
        patch.setattr(evaluator, "for_each_client", for_each_client)
        yield


def _once(build, key_of):
    built = {}

    @functools.wraps(build)
    def build_once(*args, **options):
        key = key_of(*args, **options)
        if key is None:
            return build(*args, **options)
        if key not in built:
            built[key] = (
                build(*args, **options),
                args,
            )  # keeps the arguments alive, whose ids are keys
        return built[key][0]

    return build_once


def _key_of_map(process, model, fn, models=None, *, at_a_time) -> tuple | None:
    return (id(process), id(model), fn, at_a_time) if models is None else None


def _key_of_model(config, dataset) -> str | None:
    from tff_pfl.experiment.run_directory import resolved

    if config.imports:  # other tests may use the same names for other modules
        return None
    settings = resolved(config)
    sections = settings["model"], settings["task"], settings["data"]["normalization"]
    return json.dumps([*sections, dataset.fingerprint])


def _key_of_process(config, model, dataset) -> str | None:
    from tff_pfl.experiment.run_directory import resolved
    from tff_pfl.local import rows_of_batch

    if config.imports:  # other tests may use the same names for other modules
        return None
    settings = resolved(config)
    return json.dumps(
        [
            *(settings[section] for section in _SECTIONS),
            *(settings["evaluation"][key] for key in _TUNING),
            settings["data"]["normalization"],
            settings["clients_per_round"],
            settings["privacy"]["epsilon"] and settings["rounds"],  # determine the noise
            [dataset.num_clients, dataset.num_classes, dataset.image_shape],
            str(dataset.x_dtype),
            rows_of_batch(settings["local"]["batch_size"], int(dataset.sizes().max())),
        ]
    )

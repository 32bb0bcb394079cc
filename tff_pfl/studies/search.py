"""Trials that are not known before: each follows from what those before it have reached."""

import contextlib
import dataclasses
import math
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from tff_pfl.ranges import FINITE, takes, whole
from tff_pfl.studies.trials import Interval, OneOf

_SCORE = "score"

Parameters = Mapping[str, float | int]
"""Of each key the number of an `Interval`, or the place among the values of a `OneOf`."""


@takes(number=whole(2), at_a_time=whole(1), seed=whole(0))
@dataclasses.dataclass(frozen=True)
class Search:
    """A search for good settings by Vizier: in the place of a list of trials.

    A Gaussian process is fitted to the scores of the trials so far, and the next trial is where its
    upper confidence bound is the highest (Song et al., "The Vizier Gaussian process bandit
    algorithm", 2024). Among the first trials is the centre of all intervals.

    Attributes:
        values: Of each key of the config, made by `uniform`, `log_uniform` or `one_of`.
        number: Of trials of each variant. Where it is raised, the search goes on; runs of the table
            that a better trial replaces are to be deleted, as where trials are added to a list.
        at_a_time: Trials that are chosen before any of them has a score, as if each had the lowest
            so far: more of them can run side by side, and each knows less.
        seed: Of what is random in the search.
    """

    values: Mapping[str, Interval | OneOf]
    number: int
    at_a_time: int = 1
    seed: int = 0

    def __post_init__(self):
        values = self.values.values() if isinstance(self.values, Mapping) else ()
        if not values or not all(isinstance(x, Interval | OneOf) for x in values):
            raise ValueError(
                "A search has values by keys of the config, one or more, each made by uniform, "
                f"log_uniform or one_of, got {self.values!r}."
            )

    def settings(self, parameters: Parameters) -> dict[str, Any]:
        """What a trial's parameters are in a config."""
        return {
            key: values.values[parameters[key]] if isinstance(values, OneOf) else parameters[key]
            for key, values in self.values.items()
        }

    def suggest(
        self, tried: Sequence[tuple[Parameters, float | None]], number: int
    ) -> list[Parameters]:
        """The next trials.

        Equal ones before give equal ones, on the same machine.

        Args:
            tried: Those before, each with its score, of which more is better. One that is `None` or
                not finite counts as one that is as far below the lowest as that is below the best.
            number: How many.

        Raises:
            ModuleNotFoundError: If a package is missing that Vizier's search imports.
            RuntimeError: Whatever else Vizier meets.
        """
        from vizier.service import clients
        from vizier.service import pyvizier as vz

        config = vz.StudyConfig(algorithm="GAUSSIAN_PROCESS_BANDIT")
        for key, values in self.values.items():
            _add(config.search_space.root, key, values, vz.ScaleType)
        metric = vz.MetricInformation(_SCORE, goal=vz.ObjectiveMetricGoal.MAXIMIZE)
        config.metric_information.append(metric)
        clients.environment_variables.servicer_use_sql_ram()
        with _seeded(f"{self.seed}, {len(tried)}"), _quiet():
            study = clients.Study.from_study_config(
                config, owner="tff_pfl", study_id=uuid.uuid4().hex
            )
            scores = _finite([score for _, score in tried])
            for (parameters, _), score in zip(tried, scores, strict=True):
                study.request(vz.TrialSuggestion(self._to_vizier(parameters)))
                (trial,) = study.suggest(count=1)
                trial.complete(vz.Measurement({_SCORE: score}))
            suggested = []
            while len(suggested) < number:
                # Several in one call would be several points near the best one.
                for trial in study.suggest(count=1 if tried else number):
                    suggested.append(self._from_vizier(trial.parameters))
                    trial.complete(vz.Measurement({_SCORE: min(scores, default=0.0)}))
            study.delete()
        return suggested

    def _to_vizier(self, parameters):
        result = dict(parameters)
        for key, values in self.values.items():
            if isinstance(values, OneOf):
                place = parameters[key]
                result[key] = float(values.values[place]) if _has_order(values) else str(place)
        return result

    def _from_vizier(self, parameters):
        result = {}
        for key, values in self.values.items():
            found = parameters[key]
            if isinstance(values, Interval):
                result[key] = values.rounded(found)
            elif _has_order(values):
                result[key] = list(map(float, values.values)).index(found)
            else:
                result[key] = int(found)
        return result


def _finite(scores: Sequence[float | None]) -> list[float]:
    """Scores of all trials: one that is not finite would make all that Vizier computes NaN."""
    known = [score for score in scores if score is not None and math.isfinite(score)]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    lower = lowest - (highest - lowest or 1.0)
    return [score if score in known else lower for score in scores]


def _has_order(values: OneOf) -> bool:
    """Whether they are numbers, between which a Gaussian process may have something in common."""
    return all(FINITE.contains(value) for value in values.values)


def _add(root, key, values, scale_type):
    if isinstance(values, Interval):
        scale = scale_type.LOG if values.by_logarithm else scale_type.LINEAR
        root.add_float_param(key, float(values.least), float(values.most), scale_type=scale)
    elif _has_order(values):
        root.add_discrete_param(key, sorted({float(value) for value in values.values}))
    else:
        root.add_categorical_param(key, list(map(str, range(len(values.values)))))


@contextlib.contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """Vizier takes its seeds from Python's generator, which is left as it was."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what Vizier logs where nothing is wrong, also as errors; these are raised."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)

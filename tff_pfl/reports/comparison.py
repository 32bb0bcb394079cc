"""Variants that are compared, such as those of a study, and what their finished runs gave."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.evaluation import MARGIN, MetricName
from tff_pfl.experiment import Evaluation, LateMean, RunFiles
from tff_pfl.experiment.run_directory import OF_NO_NUMBER, flatten, reading
from tff_pfl.experiment.summary import finished_summary
from tff_pfl.names import check_names
from tff_pfl.reports.runs import Runs

# The first rounds are slower: graphs are made in them.
_WARM_UP = 2


class RunResult(NamedTuple):
    """What a finished run gave.

    Attributes:
        path: Its output directory.
        seed: `config.seed`; 0, as is the default, where the settings do not say.
        settings: The resolved config, as JSON values; of a run that was trained in Python, what
            its caller named.
        evaluations: Those of its summary, such as `final`; see `Summary.evaluations`.
        bytes_down: That a client receives in a round.
        bytes_up: That a client sends in a round.
        round_seconds: Median of the rounds but for the first ones.
        code: Digests of a user's own modules, by their names, when the last rounds were computed.
    """

    path: pathlib.Path
    seed: int
    settings: Mapping[str, Any]
    evaluations: Mapping[str, Evaluation | LateMean]
    bytes_down: float
    bytes_up: float
    round_seconds: float
    code: Mapping[str, str]

    @property
    def final(self) -> Evaluation:
        """The evaluation after the last round."""
        return self.evaluations["final"]

    @property
    def is_of_sample(self) -> bool:
        """Whether some of its clients were evaluated in the place of all."""
        return any(name.statistic == MARGIN for name in self.final.metrics)

    def name_of(self, section: str) -> Any:
        """What the settings choose by name, such as that of `algorithm`; `None` if they do not."""
        found = self.settings.get(section)
        return found.get("name") if isinstance(found, Mapping) else found

    def value(self, name: MetricName, evaluation: str = "final") -> float | None:
        """A metric of an evaluation; `None` if there is none."""
        found = self.evaluations.get(evaluation)
        return None if found is None else found.metrics.get(name)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Variants, each with the results of its finished runs, one a seed.

    Attributes:
        title: Of tables and pages.
        results: By the labels of the variants; empty where no run is finished.
        planned: How many runs each variant is to have, by labels.
        baseline: The label of the variant that seconds are relative to.
        chosen: The settings that tuning has chosen, by labels; empty without tuning.
    """

    title: str
    results: Mapping[str, Sequence[RunResult]]
    planned: Mapping[str, int]
    baseline: str
    chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def finished(self) -> dict[str, Sequence[RunResult]]:
        """The results of the variants that have some, by labels."""
        return {label: results for label, results in self.results.items() if results}

    @property
    def mixed(self) -> dict[str, list[str]]:
        """By labels, the keys in which runs of a variant differ though they should not.

        They are not repetitions of one another then: a config file, or the module of a method, was
        edited between two runs, or one was named that is not of the variant. A key that some lack,
        as older ones do, is none.
        """
        keys = {label: _different_keys(results) for label, results in self.results.items()}
        return {label: found for label, found in keys.items() if found}

    def check_label(self, label: str) -> None:
        """Refuses what is no variant with a finished run.

        Raises:
            UnknownNameError: With the nearest one that is.
        """
        check_names("variant with finished runs", [label], self.finished)


def compared(
    title: str,
    runs: Runs,
    *,
    baseline: str | None = None,
    chosen: Mapping[str, str] | None = None,
) -> Comparison:
    """Reads what is finished of some runs.

    Args:
        title: See `Comparison`.
        runs: Output directories by the labels of their variants; those that are not finished, or
            not there yet, do not count.
        baseline: See `Comparison`; by default the first variant.
        chosen: See `Comparison`.

    Raises:
        OutputDirectoryError: If a file of a finished run is damaged or missing.
    """
    return Comparison(
        title=title,
        results={label: _results(run_dirs) for label, run_dirs in runs.items()},
        planned={label: len(run_dirs) for label, run_dirs in runs.items()},
        baseline=baseline or next(iter(runs)),
        chosen=chosen or {},
    )


def _different_keys(results: Sequence[RunResult]) -> list[str]:
    flat = [flatten(result.settings, ".") | result.code for result in results]
    common = [key for key in (flat or [{}])[0] if all(key in settings for settings in flat)]
    return [
        key
        for key in common
        if len({repr(settings[key]) for settings in flat}) > 1
        and not any(f"{key}.".startswith(f"{free}.") for free in ("seed", *OF_NO_NUMBER))
    ]


def _results(run_dirs: Iterable[str | os.PathLike]) -> list[RunResult]:
    results = []
    for run_dir in run_dirs:
        summary = finished_summary(run_dir)
        if summary is not None:
            files = RunFiles(run_dir)
            settings, metrics, timings = files.settings(), files.metrics(), files.timings()
            last = summary.evaluations["final"].round_num
            codes = [of.code for of in files.sessions() if of.rounds_before < last]
            with reading(files.path / "metrics.csv"):
                down, up = (metrics[f"bytes_{way}_per_client"][-1] for way in ("down", "up"))
            with reading(files.path / "timings.csv"):
                seconds = timings["round_seconds"]
            seconds = seconds[_WARM_UP:] if len(seconds) > _WARM_UP else seconds
            results.append(
                RunResult(
                    files.path,
                    settings.get("seed", 0),
                    settings,
                    summary.evaluations,
                    down,
                    up,
                    float(np.nanmedian(seconds)),
                    codes[-1] if codes else {},
                )
            )
    return results

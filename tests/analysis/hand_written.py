"""Writes finished runs by hand: quickly, with all files that tables and pages read."""

import csv
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.data import Partition
from tff_pfl.evaluation import ClientMetrics, MetricName, summarize
from tff_pfl.experiment import (
    EvaluatedRound,
    LateMean,
    Result,
    RunDirectory,
    Session,
    write_summary,
)
from tff_pfl.experiment.summary import best_on


def write_run(
    path: pathlib.Path,
    accuracies: Sequence[float],
    *,
    seed: int = 0,
    first_row: int = 0,
    algorithm: str = "ditto",
    global_accuracies: Sequence[float] | None = None,
    undefined: Sequence[int] = (),
    early: float = 0.5,
    bytes_down: int = 1000,
    seconds: float = 0.5,
    epsilon: float | None = None,
    finished: bool = True,
    sessions: Sequence[tuple[int, Mapping[str, Any]]] = ((0, {"python": "3.11.1"}),),
    **settings: Any,
) -> pathlib.Path:
    """Writes a run of 10 rounds, evaluated after rounds 5 and 10.

    Args:
        path: The output directory. It is overwritten.
        accuracies: The accuracies of all clients' own models after the last round.
        seed: The seed in the config.
        first_row: The first row of the partition. Different rows make different partitions.
        algorithm: The name of the algorithm.
        global_accuracies: The accuracies of the global model; `None` for a run without one.
        undefined: The clients whose own accuracy is undefined.
        early: The accuracies after round 5, as a factor of the last ones.
        bytes_down: The bytes that a client receives in a round; it sends twice as many.
        seconds: The seconds of each round except the first two.
        epsilon: The epsilon of all rounds; `None` for a run without privacy.
        finished: Whether to write a summary.
        sessions: `(rounds before, versions)` of each session.
        **settings: Further settings of the config.
    """
    rows = [np.array([first_row + 2 * i, first_row + 2 * i + 1]) for i in range(len(accuracies))]
    config = {"seed": seed, "algorithm": {"name": algorithm}, "data": {"name": "digits"}}
    with RunDirectory(path, config | settings, overwrite=True) as directory:
        Partition(rows, rows, rows).save(directory.file("partition.npz"))
        finals = {
            round_num: _evaluation(
                directory, round_num, share, accuracies, global_accuracies, undefined
            )
            for round_num, share in ((5, early), (10, 1.0))
        }
        _write(
            directory.file("metrics.csv"),
            {
                "round": range(1, 11),
                "bytes_down_per_client": [bytes_down] * 10,
                "bytes_up_per_client": [2 * bytes_down] * 10,
                **({} if epsilon is None else {"privacy/epsilon": [epsilon / 10] * 9 + [epsilon]}),
                **{
                    str(name): [finals[i][name] if i in finals else "" for i in range(1, 11)]
                    for name in finals[10]
                },
            },
        )
        _write(
            directory.file("timings.csv"),
            {
                "round": range(1, 11),
                "round_seconds": [9.0, 9.0] + [seconds] * 8,
                "evaluation_seconds": [""] * 4 + [1.0] + [""] * 4 + [1.0],
            },
        )
        recorded = [Session(*session)._asdict() for session in sessions]
        directory.write_json("versions.json", {"sessions": recorded})
        if finished:
            evaluations = [EvaluatedRound(*pair) for pair in finals.items()]
            result = Result(
                f"{algorithm} on digits",
                evaluations[-1],
                None,
                best_on("test", evaluations),
                LateMean.of(evaluations, share=1.0),
                1.0,
            )
            write_summary(directory, result)
    return path


def _evaluation(directory, round_num, share, accuracies, global_accuracies, undefined):
    values: Mapping[MetricName, np.ndarray] = {}
    models = {"personalized": accuracies, "global": global_accuracies}
    for model, own in models.items():
        if own is not None:
            own = share * np.array(own, float)
            values[MetricName(model, "local_test", "loss")] = 1 - own
            values[MetricName(model, "local_test", "accuracy")] = own
    sizes = np.full(len(accuracies), 4)
    name = MetricName("personalized", "local_test", "accuracy")
    is_undefined = {name: np.isin(np.arange(len(accuracies)), undefined)}
    clients = ClientMetrics(np.arange(len(accuracies)), sizes, values, undefined=is_undefined)
    _write(directory.file("clients", f"round_{round_num:06d}.csv"), clients.columns(undefined=None))
    return summarize(clients)


def _write(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))

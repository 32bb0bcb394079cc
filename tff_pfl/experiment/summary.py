"""Holds the result of a run, as Python values, as JSON and as a printed table."""

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.quantities import BY_NAME, Quantities
from tff_pfl.evaluation import (
    MARGIN,
    STATISTICS,
    MetricName,
    from_text,
    main_metric,
    to_text,
)
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, read_json, reading
from tff_pfl.output.files import finite, spelled_out
from tff_pfl.output.tables import aligned, decimal, to_html

# The number of clients that have not been in a cohort, which are evaluated nevertheless.
NUM_CLIENTS_NEVER_SELECTED = MetricName("", "", "num_clients_never_selected")
# The printed names of the evaluations of a result, besides the last one.
_FURTHER = {
    "best_on_validation": "best on validation examples",
    "best_on_test": "best on test examples, chosen on the same examples",
    "late_mean": "mean of the late evaluations",
}


def model_and_quantity(metric: str, whose: str) -> tuple[str, str]:
    """Splits the name of a metric that decides something into its model and its quantity.

    Args:
        metric: "MODEL/QUANTITY", such as "personalized/accuracy". The quantity is the loss or a
            metric of the task.
        whose: The owner of the metric, for messages, such as "tuning's".

    Raises:
        UnknownNameError: The model does not exist.
    """
    model, _, quantity = metric.partition("/")
    check_names(f"model of {whose} metric", [model], ("personalized", "global"))
    return model, quantity


class EvaluatedRound(NamedTuple):
    """The metrics of one evaluation; see `tff_pfl.evaluation.summarize`.

    Attributes:
        round_num: The number of rounds done, from 1.
        metrics: The metrics, by name.
    """

    round_num: int
    metrics: Mapping[MetricName, float]

    def mean(self, quantity: str, model: str = "personalized") -> float | None:
        """Returns a model's mean quantity over clients, from the first pool that has it.

        It is `None` if that model was not evaluated.

        Raises:
            UnknownNameError: No model has such a quantity.
        """
        means = [name for name in self.metrics if name.statistic == "mean"]
        check_names("quantity", [quantity], dict.fromkeys(name.quantity for name in means))
        for name in means:
            if (name.model, name.quantity) == (model, quantity):
                return self.metrics[name]
        return None

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of the evaluation, as a tuple like `LateMean.rounds`."""
        return (self.round_num,)

    def quality(self, split: str, quantities: Quantities = BY_NAME) -> float | None:
        """Returns the number by which evaluations are compared: higher is better, NaN is -inf.

        It is the mean over clients of the `main_metric` on their own examples of a split, or minus
        this mean if less of it is better.

        Args:
            split: The split, "test" or "validation".
            quantities: The quantities of the task.

        Returns:
            The number, or `None` if the split was not evaluated.
        """
        name = main_metric(name for name in self.metrics if name.pool == f"local_{split}")
        if name is None:
            return None
        value = self.metrics[name]
        return -math.inf if math.isnan(value) else quantities[name.quantity].better * value


def best_on(
    split: str, evaluations: Sequence[EvaluatedRound], quantities: Quantities = BY_NAME
) -> EvaluatedRound | None:
    """Returns the first evaluation with the best `EvaluatedRound.quality` on a split, or `None`."""
    compared = [
        (quality, evaluated)
        for evaluated in evaluations
        if (quality := evaluated.quality(split, quantities)) is not None
    ]
    return max(compared, key=lambda pair: pair[0])[1] if compared else None


class LateMean(NamedTuple):
    """The mean of the late evaluations of a run.

    Attributes:
        rounds: The rounds of the evaluations, in order.
        metrics: The means over the evaluations, for models' metrics that all of them have.
    """

    rounds: tuple[int, ...]
    metrics: Mapping[MetricName, float]

    @classmethod
    def of(cls, evaluations: Sequence[EvaluatedRound], share: float) -> "LateMean":
        """Returns the mean of the last evaluations.

        Args:
            evaluations: All evaluations of a run, in order; at least one.
            share: The share of the evaluations that counts, rounded up; at least one counts.
        """
        number = max(1, math.ceil(share * len(evaluations) - 1e-9))  # 3 for 0.1 * 30
        late = evaluations[-number:]
        metrics = {
            name: float(np.mean([evaluated.metrics[name] for evaluated in late]))
            for name in late[-1].metrics
            if name.model and all(name in evaluated.metrics for evaluated in late)
        }
        return cls(tuple(evaluated.round_num for evaluated in late), metrics)


class Result(NamedTuple):
    """The result of a run; `summary.json` has everything except the server's state.

    Attributes:
        title: The algorithm and the data set.
        final: The last evaluation.
        best_on_validation: The evaluation that is best on validation examples, see
            `EvaluatedRound.quality`. Its numbers on test examples were not used for the choice.
            `None` if validation examples were not evaluated.
        best_on_test: The evaluation that is best on test examples. Its numbers on test examples are
            too good, because they were used for the choice, but papers report them. `None` if test
            examples were not evaluated.
        late_mean: The mean of the late evaluations.
        seconds: The seconds of training and evaluation in all sessions of the run.
        stopped: The reason for which an early stop ended the run after the round of `final`; `None`
            if the run was not stopped early.
        privacy: The privacy loss of the run, see `PrivacyLoss.summary`; `None` without privacy.
        server_state: The final `ServerState`; `None` if the result was read from a file.
    """

    title: str
    final: EvaluatedRound
    best_on_validation: EvaluatedRound | None
    best_on_test: EvaluatedRound | None
    late_mean: LateMean
    seconds: float
    stopped: str | None = None
    privacy: Mapping[str, Any] | None = None
    server_state: Any = None

    @property
    def evaluations(self) -> dict[str, EvaluatedRound | LateMean]:
        """The evaluations by the names of their attributes, `final` first."""
        named = {name: getattr(self, name) for name in ("final", *_FURTHER)}
        return {name: evaluated for name, evaluated in named.items() if evaluated is not None}

    def _repr_html_(self) -> str:
        """Returns the table of the last evaluation for notebooks."""
        title = f"{self.title}, round {self.final.round_num}, {self.seconds:.1f} s"
        return to_html(title, _cells(self.final.metrics))


def write_summary(directory: RunDirectory, result: Result) -> None:
    """Writes the result of a run to `summary.json`."""
    content: dict[str, Any] = {"title": result.title}
    content |= {name: _to_json(found) for name, found in result.evaluations.items()}
    content["seconds"] = round(result.seconds, 3)
    if result.stopped is not None:
        content["stopped"] = result.stopped
    content = finite(content)
    if result.privacy is not None:  # JSON has no infinity, and null would mean unknown
        content["privacy"] = spelled_out(result.privacy)
    content["checksum"] = _checksum(content)
    directory.write_json("summary.json", content)


def read_summary(run_dir: str | os.PathLike) -> Result | None:
    """Reads the result of a finished run, without its server's state.

    Returns:
        The result; `None` if the run has no `summary.json`.

    Raises:
        OutputDirectoryError: The file is damaged.
    """
    path = os.path.join(run_dir, "summary.json")
    if not os.path.exists(path):
        return None
    content = read_json(path)
    with reading(path):
        if content["checksum"] != _checksum(content):
            raise ValueError("wrong checksum")
        late, privacy = content["late_mean"], content.get("privacy")
        found = {
            name: EvaluatedRound(content[name]["round_num"], from_text(content[name]["metrics"]))
            for name in content.keys() & {"final", "best_on_validation", "best_on_test"}
        }
        return Result(
            content["title"],
            found["final"],
            found.get("best_on_validation"),
            found.get("best_on_test"),
            LateMean(tuple(late["rounds"]), from_text(late["metrics"])),
            content["seconds"],
            content.get("stopped"),
            privacy and {**privacy, "epsilon": float(privacy["epsilon"])},
        )


def finished_summary(run_dir: str | os.PathLike, rounds: int | None = None) -> Result | None:
    """Reads the result of a run that has done enough rounds.

    Args:
        run_dir: The run's output directory.
        rounds: The least number of rounds; `None`: any number. A run that stopped early is finished
            with fewer rounds, too.

    Returns:
        The result; `None` if the run is not finished or its `summary.json` is damaged.
    """
    try:
        result = read_summary(run_dir)
    except OutputDirectoryError:
        return None
    if result is None or (result.stopped is None and result.final.round_num < (rounds or 0)):
        return None
    return result


def _to_json(evaluated: EvaluatedRound | LateMean) -> dict[str, Any]:
    return evaluated._asdict() | {"metrics": to_text(evaluated.metrics)}


def _checksum(content: Mapping[str, Any]) -> str:
    """Returns the checksum of a summary, without its entry `checksum`."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def table(result: Result) -> str:
    """Returns the accuracies of each evaluation as text: a row a model, a column a statistic."""
    lines = [f"{result.title}, {result.seconds:.1f} s of training and evaluation"]
    for key, evaluated in result.evaluations.items():
        if key == "late_mean" and evaluated.rounds == result.final.rounds:
            continue
        lines += ["", f"{_FURTHER.get(key, key)}: {_rounds(evaluated)}", *rows(evaluated.metrics)]
    if result.stopped is not None:
        lines += ["", f"stopped early: {result.stopped}"]
    if result.privacy is not None:
        lines += ["", _privacy_line(**result.privacy)]
    absent = result.final.metrics.get(NUM_CLIENTS_NEVER_SELECTED)
    if absent:
        but = "" if _is_sampled(result.final.metrics) else " but are evaluated"
        lines += ["", f"clients that never took part{but}: {absent}"]
    return "\n".join(lines)


def _privacy_line(epsilon, noise_multiplier, num_clients, clients_per_round, delta, sampling):
    """Returns the privacy loss of a run as one line."""
    how = "expected" if sampling == "poisson" else "drawn"
    return (
        f"differential privacy of clients: epsilon {epsilon:.4g}, delta {delta:.3g}; noise of "
        f"{noise_multiplier:.4g} clipping norms, {clients_per_round} of {num_clients} clients "
        f"{how} a round"
    )


def _is_sampled(metrics):
    """Returns whether only a sample of clients was evaluated."""
    return any(name.statistic == MARGIN for name in metrics)


def _rounds(evaluated):
    first, last = evaluated.rounds[0], evaluated.rounds[-1]
    return f"round {last}" if first == last else f"rounds {first} to {last}"


def rows(metrics: Mapping[MetricName, float]) -> list[str]:
    """Returns the lines of a table of accuracies and losses, and of diverged models."""
    lines = aligned(_cells(metrics))
    for name, value in metrics.items():
        if name.quantity == "num_nonfinite" and value:
            lines.append(
                f"  {name.model}/{name.pool}: models that diverged (loss is not finite): {value:g}"
            )
    return lines


def _cells(metrics: Mapping[MetricName, float]) -> list[list[str]]:
    """Returns the rows of a table of accuracies and losses, heads first."""
    mean, *others = STATISTICS
    shown = [mean, MARGIN, *others] if _is_sampled(metrics) else STATISTICS
    heads = ["95 %: ±" if name == MARGIN else name.replace("_5_percent", " 5 %") for name in shown]
    cells = [["", *heads, "loss"]]
    with_statistics = {(name.model, name.pool) for name in metrics if name.statistic == "std"}
    for name in metrics:
        of_loss = (name.quantity, name.statistic) == ("loss", "mean")
        if of_loss and (name.model, name.pool) not in with_statistics:
            no_accuracies = ["-"] * len(shown)
            cells.append([f"{name.model}/{name.pool}", *no_accuracies, decimal(metrics[name])])
        elif name.statistic == "std":  # quantities with a deviation have all statistics
            values = [metrics.get(name._replace(statistic=it), math.nan) for it in shown]
            loss = metrics[name._replace(quantity="loss", statistic="mean")]
            cells.append([str(name._replace(statistic="")), *map(decimal, [*values, loss])])
    return cells

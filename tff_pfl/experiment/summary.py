"""The result of a run: for its caller, as JSON for programs, as a table for people."""

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.evaluation import MARGIN, STATISTICS, MetricName, direction, from_text, to_text
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, read_json, reading
from tff_pfl.files import finite, spelled_out
from tff_pfl.names import check_names
from tff_pfl.tables import aligned, decimal

# Clients that were in no cohort up to an evaluation; they are evaluated all the same.
NUM_CLIENTS_NEVER_SELECTED = MetricName("", "", "num_clients_never_selected")
# Names for people, of the evaluations of a result beside the last one.
_FURTHER = {
    "best_on_validation": "best on validation examples",
    "best_on_test": "best on test examples, chosen on what it reports",
    "late_mean": "mean of the late evaluations",
}


def model_and_quantity(metric: str, whose: str) -> tuple[str, str]:
    """Returns the parts of the name of a metric that decides something.

    Args:
        metric: "MODEL/QUANTITY", such as "personalized/accuracy".
        whose: The owner of the metric, for the message, as "tuning's".

    Raises:
        UnknownNameError: If there is no such model or quantity.
    """
    model, _, quantity = metric.partition("/")
    check_names(f"model of {whose} metric", [model], ("personalized", "global"))
    check_names(f"quantity of {whose} metric", [quantity], ("accuracy", "loss"))
    return model, quantity


class Evaluation(NamedTuple):
    """The metrics of one evaluation; see `tff_pfl.evaluation.summarize`.

    Attributes:
        round_num: Rounds done, from 1.
        metrics: By name.
    """

    round_num: int
    metrics: Mapping[MetricName, float]

    def mean(self, quantity: str, model: str = "personalized") -> float | None:
        """Returns the mean over clients of a quantity of a model, in the first pool that has it."""
        for name, value in self.metrics.items():
            if (name.model, name.quantity, name.statistic) == (model, quantity, "mean"):
                return value
        return None

    @property
    def rounds(self) -> tuple[int, ...]:
        """Returns the one round, as `LateMean` has several."""
        return (self.round_num,)

    def quality(self, split: str) -> float | None:
        """Returns what evaluations are compared by: the higher, the better; -inf for NaN.

        It is the first of these that was measured: the mean accuracy of personalized models on
        their clients' own examples of the split, minus their mean loss, and the same of the global
        model. `None`: none was measured.
        """
        for model in ("personalized", "global"):
            for quantity in ("accuracy", "loss"):
                value = self.metrics.get(MetricName(model, f"local_{split}", quantity, "mean"))
                if value is not None:
                    return -math.inf if math.isnan(value) else direction(quantity) * value
        return None


def best_on(split: str, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Returns the evaluation of the best quality on a split, the first of equals, or `None`."""
    compared = [evaluated for evaluated in evaluations if evaluated.quality(split) is not None]
    return max(compared, key=lambda evaluated: evaluated.quality(split), default=None)


class LateMean(NamedTuple):
    """The mean of the late evaluations of a run.

    Attributes:
        rounds: The rounds of the evaluations, in order.
        metrics: The means over them, of the models' metrics that all of them have.
    """

    rounds: tuple[int, ...]
    metrics: Mapping[MetricName, float]

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation], share: float) -> "LateMean":
        """Returns the mean of the last evaluations.

        Args:
            evaluations: All of a run, in order; one at least.
            share: The share of them that counts, rounded up, but one at least.
        """
        number = max(1, math.ceil(share * len(evaluations) - 1e-9))  # of 0.1 * 30, 3
        late = evaluations[-number:]
        metrics = {
            name: float(np.mean([evaluated.metrics[name] for evaluated in late]))
            for name in late[-1].metrics
            if name.model and all(name in evaluated.metrics for evaluated in late)
        }
        return cls(tuple(evaluated.round_num for evaluated in late), metrics)


class Result(NamedTuple):
    """The result of a run; `summary.json` has all of it but the server's state.

    Attributes:
        title: The algorithm and the data set.
        final: The last evaluation.
        best_on_validation: The evaluation that is best on validation examples, see
            `Evaluation.quality`; its numbers on test examples had no part in the choice. `None` if
            nothing was evaluated on validation examples.
        best_on_test: The evaluation that is best on test examples. It is chosen on the data it
            reports, which makes its numbers too good; papers have them all the same. `None` if
            nothing was evaluated on test examples.
        late_mean: The mean of the late evaluations.
        seconds: Seconds of training and evaluation, all sessions of the run together.
        stopped: Why an early stop ended the run after the round of `final`; `None` if none did.
        privacy: What the run reveals of its clients, see `PrivacyLoss.summary`; `None` for a run
            that promises nothing.
        server_state: The final `ServerState`; `None` in a result that was read.
    """

    title: str
    final: Evaluation
    best_on_validation: Evaluation | None
    best_on_test: Evaluation | None
    late_mean: LateMean
    seconds: float
    stopped: str | None = None
    privacy: Mapping[str, Any] | None = None
    server_state: Any = None

    @property
    def evaluations(self) -> dict[str, Evaluation | LateMean]:
        """Returns the evaluations by the names of their attributes, the last one first."""
        named = {name: getattr(self, name) for name in ("final", *_FURTHER)}
        return {name: evaluated for name, evaluated in named.items() if evaluated is not None}


def write_summary(directory: RunDirectory, result: Result) -> None:
    """Writes `summary.json`: the final and the best evaluations of a run."""
    content = {"title": result.title}
    content |= {name: _to_json(found) for name, found in result.evaluations.items()}
    content["seconds"] = round(result.seconds, 3)
    if result.stopped is not None:
        content["stopped"] = result.stopped
    content = finite(content)
    if result.privacy is not None:  # null would say that an infinite epsilon is unknown
        content["privacy"] = spelled_out(result.privacy)
    content["checksum"] = _checksum(content)
    directory.write_json("summary.json", content)


def read_summary(run_dir: str | os.PathLike) -> Result | None:
    """Reads the result of a finished run, without its server's state; `None` if there is none.

    Raises:
        OutputDirectoryError: If it is damaged.
    """
    path = os.path.join(run_dir, "summary.json")
    if not os.path.exists(path):
        return None
    content = read_json(path)
    with reading(path):
        if content["checksum"] != _checksum(content):
            raise ValueError("wrong checksum")
        late, privacy = content["late_mean"], content.get("privacy")
        return Result(
            content["title"],
            _evaluation_of(content["final"]),
            _evaluation_of(content.get("best_on_validation")),
            _evaluation_of(content.get("best_on_test")),
            LateMean(tuple(late["rounds"]), from_text(late["metrics"])),
            content["seconds"],
            content.get("stopped"),
            privacy and {**privacy, "epsilon": float(privacy["epsilon"])},
        )


def finished_summary(run_dir: str | os.PathLike, rounds: int | None = None) -> Result | None:
    """Reads the result of a run that has done so many rounds; `None` if it has not, or is damaged.

    A run that has stopped early is finished, however many rounds are asked for.
    """
    try:
        result = read_summary(run_dir)
    except OutputDirectoryError:
        return None
    if result is None or (result.stopped is None and result.final.round_num < (rounds or 0)):
        return None
    return result


def _to_json(evaluated: Evaluation | LateMean) -> dict[str, Any]:
    return evaluated._asdict() | {"metrics": to_text(evaluated.metrics)}


def _evaluation_of(value: Mapping[str, Any] | None) -> Evaluation | None:
    return value and Evaluation(value["round_num"], from_text(value["metrics"]))


def _checksum(content: Mapping[str, Any]) -> str:
    """Returns the checksum of all but the checksum."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def table(result: Result) -> str:
    """Returns the accuracies of each evaluation, models in rows, statistics in columns."""
    lines = [f"{result.title}, {result.seconds:.1f} s of training and evaluation"]
    for what, evaluated in result.evaluations.items():
        if what == "late_mean" and evaluated.rounds == result.final.rounds:
            continue
        lines += ["", f"{_FURTHER.get(what, what)}: {_rounds(evaluated)}", *rows(evaluated.metrics)]
    if result.stopped is not None:
        lines += ["", f"stopped early: {result.stopped}"]
    if result.privacy is not None:
        lines += ["", _promise(**result.privacy)]
    absent = result.final.metrics.get(NUM_CLIENTS_NEVER_SELECTED)
    if absent:
        evaluated = "" if _of_sample(result.final.metrics) else ", and are evaluated all the same"
        lines += ["", f"clients that never took part{evaluated}: {absent}"]
    return "\n".join(lines)


def _promise(epsilon, noise_multiplier, num_clients, clients_per_round, delta, sampling):
    """Returns what a run promises, in one line."""
    how = "expected" if sampling == "poisson" else "drawn"
    return (
        f"differential privacy of clients: epsilon {epsilon:.4g}, delta {delta:.3g}; noise of "
        f"{noise_multiplier:.4g} clipping norms, {clients_per_round} of {num_clients} clients "
        f"{how} a round"
    )


def _of_sample(metrics):
    """Reads from the metrics whether a sample was evaluated."""
    return any(name.statistic == MARGIN for name in metrics)


def _rounds(evaluated):
    first, last = evaluated.rounds[0], evaluated.rounds[-1]
    return f"round {last}" if first == last else f"rounds {first} to {last}"


def rows(metrics: Mapping[MetricName, float]) -> list[str]:
    """Returns lines of a table of accuracies and other means, and of models that diverged."""
    mean, *others = STATISTICS
    shown = [mean, MARGIN, *others] if _of_sample(metrics) else STATISTICS
    heads = ["95 %: ±" if name == MARGIN else name.replace("_5_percent", " 5 %") for name in shown]
    cells = [["", *heads, "loss"]]
    with_statistics = {(name.model, name.pool) for name in metrics if name.statistic == "std"}
    for name in metrics:
        of_loss = (name.quantity, name.statistic) == ("loss", "mean")
        if of_loss and (name.model, name.pool) not in with_statistics:
            nothing = ["-"] * len(shown)
            cells.append([f"{name.model}/{name.pool}", *nothing, decimal(metrics[name])])
        elif name.statistic == "std":  # one of those that have all statistics
            values = [metrics.get(name._replace(statistic=it), math.nan) for it in shown]
            loss = metrics[name._replace(quantity="loss", statistic="mean")]
            cells.append([str(name._replace(statistic="")), *map(decimal, [*values, loss])])
    lines = aligned(cells)
    for name, value in metrics.items():
        if name.quantity == "num_nonfinite" and value:
            lines.append(
                f"  {name.model}/{name.pool}: models that have diverged, of a loss not finite: "
                f"{value:g}"
            )
    return lines

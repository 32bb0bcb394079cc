"""Trains, evaluates, releases and commits the rounds of a run, one after another."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_pfl import evaluation, runtime
from tff_pfl.arguments.quantities import BY_NAME, Quantities
from tff_pfl.clients import EVERYBODY_REPORTS, CohortDataSource
from tff_pfl.data import plot_partition
from tff_pfl.evaluation import MARGIN, MetricName
from tff_pfl.experiment.background import Background, Stopwatch
from tff_pfl.experiment.changes import flatten
from tff_pfl.experiment.checkpoint import Checkpoint, Progress
from tff_pfl.experiment.early_stop import SPLIT, EarlyStop
from tff_pfl.experiment.errors import NobodyReportedError
from tff_pfl.experiment.experiment import Experiment
from tff_pfl.experiment.metrics_log import NEW_CLIENTS, MetricsLog
from tff_pfl.experiment.round_warnings import (
    NO_WEIGHT,
    NOBODY,
    RoundWarnings,
    exchanges,
    warnings_of,
)
from tff_pfl.experiment.summary import NUM_CLIENTS_NEVER_SELECTED, EvaluatedRound
from tff_pfl.output.progress import Bar


class Schedule(NamedTuple):
    """The rounds of an experiment that are evaluated and committed.

    `quantities` are those of the task.
    """

    rounds: int
    evaluate_every: int
    checkpoint_every: int
    early_stop: EarlyStop | None
    quantities: Quantities = BY_NAME

    @classmethod
    def of(cls, experiment: Experiment) -> "Schedule":
        """Returns the schedule of an experiment."""
        task = experiment.process.evaluated_model.task
        every = experiment.evaluation.every, experiment.checkpoint_every
        return cls(experiment.rounds, *every, experiment.early_stop, task.quantities)

    def is_regular(self, round_num: int) -> bool:
        """Returns whether a round is evaluated, regardless of the total number of rounds.

        A run that was made longer has a further evaluation, after the round where it ended before.
        """
        return bool(self.evaluate_every) and round_num % self.evaluate_every == 0

    def evaluates(self, round_num: int) -> bool:
        """Returns whether a round is evaluated."""
        return self.is_regular(round_num) or round_num == self.rounds

    def commits(self, round_num: int) -> bool:
        """Returns whether a round is committed to the checkpoint."""
        return round_num % self.checkpoint_every == 0 or round_num == self.rounds

    def stopped(self, evaluations: Sequence[EvaluatedRound]) -> str | None:
        """Returns why the run ends early after these evaluations, or `None`."""
        if self.early_stop is None:
            return None
        regular = [it for it in evaluations if self.is_regular(it.round_num)]
        return self.early_stop.reason(regular, self.quantities)


class _Unwritten(NamedTuple):
    """The results of a round that are not on disk yet.

    Attributes:
        numbers: The metrics and seconds, by name.
        progress: The progress after the round.
        commits: Whether the round is committed.
    """

    numbers: Mapping[str, float]
    progress: Progress
    commits: bool


@dataclasses.dataclass
class Rounds:
    """The rounds of a run after its checkpoint.

    The results of a round are written while the next cohort is computed, which `compute` does as
    `next` of the process. `committed` takes the number of rounds after each commit.
    """

    experiment: Experiment
    source: CohortDataSource
    evaluator: evaluation.Evaluator
    evaluate_new_clients: evaluation.NewClientsEvaluation | None
    schedule: Schedule
    progress: Progress
    checkpoint: Checkpoint
    log: MetricsLog
    release_managers: Sequence[tff.program.ReleaseManager]
    bar: Bar
    warnings: RoundWarnings
    verbose: bool
    compute: Callable[..., Any]
    committed: Callable[[int], None]
    unwritten: _Unwritten | None = None

    def run(self, *, reopens: bool = False) -> None:
        """Runs the remaining rounds, and writes the last results even after an exception.

        Args:
            reopens: Whether to finish the last trained round again first.
        """
        progress, schedule = self.progress, self.schedule
        with Background() as background:
            try:
                if reopens:
                    self.finish_round(Stopwatch(progress.timings))
                while (
                    progress.round_num < schedule.rounds
                    and schedule.stopped(progress.evaluations) is None
                ):
                    self._next_round(background)
            finally:
                self.warnings.close()
                background.do(lambda: self._write(background))

    def _next_round(self, background: Background) -> None:
        """Trains a cohort and finishes the round."""
        progress, iterator, watch = self.progress, self.progress.iterator, Stopwatch()
        size = self.experiment.cohort_size

        def write():
            with watch.measuring("write_seconds"):
                self._write(background)

        with watch.measuring("round_seconds"):
            with watch.measuring("select_seconds"):
                clients = iterator.select(size, losses=self._losses)
            if not clients and runtime.current_devices() is None:
                raise NobodyReportedError(
                    f"Nobody reported in round {progress.round_num}, which TFF's stock runtime "
                    "cannot run. Continue with the graph runtime: --runtime=graph --resume (in "
                    "Python, set_graph_context() and resume=True)."
                )
            with background.doing(write), watch.measuring("compute_seconds"):
                output = self.compute(progress.server_state, clients)
            with watch.measuring("update_seconds"):
                iterator.update(output.clients)
        progress.server_state = output.state
        progress.reported[iterator.cohort] = True
        progress.metrics = self._training_metrics(output.metrics)
        warnings = warnings_of(output.metrics) if clients else {NOBODY: NOBODY}
        self.warnings.warn(progress.round_num, warnings)
        progress.timings = dict(watch.seconds)
        progress.seconds += watch.seconds["round_seconds"]
        self.finish_round(watch)
        shown = ("loss", *itertools.islice(self.experiment.model.task.means, 1))
        self.bar.set_postfix(postfix(output.metrics, watch.seconds, shown))
        self.bar.update()

    def _losses(self, client_ids: np.ndarray) -> np.ndarray:
        """Computes the loss of the current global model on the examples of each client."""
        return self.evaluator.losses(self.progress.server_state, self.source, client_ids)

    def _training_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        progress = self.progress
        found = {name: np.asarray(x).item() for name, x in flatten(metrics, "/").items()}
        participants = progress.iterator.participants
        if participants is not None and self.source.participation != EVERYBODY_REPORTS:
            found |= participants.metrics()
        if progress.privacy is not None:
            found["privacy/epsilon"] = progress.privacy.epsilon(progress.round_num)
        return found

    def finish_round(self, watch: Stopwatch) -> None:
        """Evaluates the last trained round if that is due, and keeps the results for `_write`."""
        progress, round_num, schedule = self.progress, self.progress.round_num, self.schedule
        metrics = dict(progress.metrics)
        if schedule.evaluates(round_num) or schedule.stopped(progress.evaluations) is not None:
            with watch.measuring("evaluation_seconds"):
                measured = self._evaluate()
            progress.seconds += watch.seconds["evaluation_seconds"]
            progress.evaluations.append(EvaluatedRound(round_num, measured))
            metrics |= evaluation.to_text(measured)
            if self.verbose:
                self.bar.write(f"round {round_num}: {one_line(measured)}")
        stopped = schedule.stopped(progress.evaluations)
        commits = schedule.commits(round_num) or stopped is not None
        self.unwritten = _Unwritten({**metrics, **watch.seconds}, progress.copy(), commits)
        if stopped is not None:
            self.warnings.show(round_num, f"stopped early: {stopped}")

    def _evaluate(self) -> dict[MetricName, float]:
        """Evaluates the models, and writes the tables and the snapshot of the evaluation.

        Clients' own examples are evaluated first, because an early stop decides on them whether the
        round is the last one.
        """
        progress, schedule = self.progress, self.schedule
        state, round_num = progress.server_state, progress.round_num
        clients = self.evaluator.on_own_examples(state, self.source)
        validated = self._on_validation(clients)
        evaluations = [*progress.evaluations, EvaluatedRound(round_num, validated)]
        is_last = round_num == schedule.rounds or schedule.stopped(evaluations) is not None
        progress.ended = round_num if is_last else 0
        clients = self.evaluator.with_others(clients, state, self.source, is_last=is_last)
        is_defined = map(clients.is_defined, clients.values)
        if clients.num_examples.any() and not any(it.any() for it in is_defined):
            self.warnings.warn(round_num, {NO_WEIGHT: NO_WEIGHT})
        was_selected = progress.reported[clients.client_ids].astype(np.int32)
        columns = clients.columns(undefined=None) | {"was_selected": was_selected}
        self.log.release_table(f"clients/round_{round_num:06d}.csv", columns)
        metrics = evaluation.summarize(clients)
        metrics[NUM_CLIENTS_NEVER_SELECTED] = int(np.sum(~progress.reported))
        if self.evaluate_new_clients is not None and is_last:
            new_clients = self.evaluate_new_clients(state)
            self.log.release_table(NEW_CLIENTS, new_clients.columns(undefined=None))
            metrics |= evaluation.summarize(new_clients)
        snapshot = self.evaluator.snapshot(state, self.source)
        if snapshot:
            self.log.release_snapshot(round_num, snapshot)
        return metrics | validated

    def _on_validation(self, clients: evaluation.ClientMetrics) -> dict[MetricName, float]:
        """Returns the metrics on validation examples: all if the options say so, or the watched."""
        early_stop, options = self.experiment.early_stop, self.experiment.evaluation
        if early_stop is None and not options.validation:
            return {}
        if options.split != SPLIT:
            state = self.progress.server_state
            clients = self.evaluator.on_own_examples(state, self.source, SPLIT)
        metrics = evaluation.summarize(clients)
        if early_stop is None or options.validation:
            return metrics
        return {early_stop.watched: metrics[early_stop.watched]}

    def _write(self, background: Background) -> None:
        """Releases and commits the unwritten results of the last round, if there are any."""
        unwritten, self.unwritten = self.unwritten, None
        if unwritten is None:
            return
        round_num, log = unwritten.progress.round_num, self.log
        if round_num == 1:  # drawn in this thread, so that training does not wait
            plot_partition(self.experiment.members, log.directory.file("partition.png"))
        background.run(log.release(unwritten.numbers, round_num))
        for manager in self.release_managers:
            try:
                background.run(manager.release(dict(unwritten.numbers), round_num))
            except Exception as error:  # a failing service must not stop the run
                self.bar.write(
                    f"round {round_num}: {type(manager).__name__} has not released its metrics: "
                    f"{type(error).__name__}: {error}"
                )
        if unwritten.commits:
            unwritten.progress.released = log.released
            self.checkpoint.save(unwritten.progress)
            self.committed(round_num)


def one_line(metrics: Mapping[MetricName, float]) -> str:
    """Returns the means of an evaluation as one line of text."""
    parts = []
    for name, value in metrics.items():
        if name.statistic == "mean":
            margin = metrics.get(name._replace(statistic=MARGIN))
            parts.append(f"{name._replace(statistic='')} {value:.4f}")
            parts[-1] += "" if margin is None else f" ± {margin:.4f}"
    return ", ".join(parts)


def postfix(
    metrics: Mapping[str, Any], timings: Mapping[str, float], quantities: Iterable[str]
) -> dict[str, str]:
    """Returns the figures that the progress bar shows: seconds, and quantities of training."""
    shown = {"s/round": f"{timings['round_seconds']:.2f}"}
    for quantity in quantities:
        for exchange, measured in exchanges(metrics).items():
            if quantity in measured:
                shown[f"{exchange}/{quantity}"] = f"{float(measured[quantity]):.3f}"
                break
    return shown

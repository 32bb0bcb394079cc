"""Trains methods that were made in Python, and compares them as studies compare configs."""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tff_pfl import runtime
from tff_pfl.analysis import curves, frames, paired
from tff_pfl.analysis.compared_run import ComparedRun, Ticks, in_short
from tff_pfl.analysis.metric_text import EVALUATIONS
from tff_pfl.analysis.results import method_table
from tff_pfl.analysis.runs import STUDY, Path, Runs, is_run, read, read_record
from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import RangeError, each, takes, whole
from tff_pfl.clients import EVERYBODY_REPORTS, Participation
from tff_pfl.config.study import folder_name
from tff_pfl.data import ExamplesError, FederatedDataset
from tff_pfl.evaluation import EvaluationOptions, Evaluator, MetricName
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.experiment.export import ExportedRun, export_models, export_new_clients
from tff_pfl.experiment.identity import of_computations
from tff_pfl.experiment.restored import trained_run
from tff_pfl.experiment.trackers import check_tracker
from tff_pfl.output.files import write_json
from tff_pfl.output.progress import progress_bar
from tff_pfl.privacy import Accountant
from tff_pfl.templates import Algorithm, compose

Data = FederatedDataset | Callable[[int], FederatedDataset]
"""The data of all runs, or a function from a run's seed to its data."""


@takes(rounds=whole(1), clients_per_round=whole(1), evaluate_every=whole(0))
def compare(
    dataset: Data,
    methods: Mapping[str, Algorithm],
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    clients_per_round: int | None = None,
    evaluate_every: int = 5,
    evaluate: EvaluationOptions | None = None,
    participation: Participation = EVERYBODY_REPORTS,
    early_stop: EarlyStop | None = None,
    accountant: Accountant | None = None,
    baseline: str | None = None,
    folder: Path = "runs/compare",
    overwrite: bool = False,
    tracker: str | None = None,
) -> "Comparison":
    """Trains each method with each seed, and compares what every client gets.

    Each run has a folder as `programs/train.py` writes it, `FOLDER/METHOD/seed0`; `report.py` and
    `tff_pfl.analysis` read FOLDER, with the runs of all calls, as a study. If the same call is
    repeated, finished runs are not trained again, and a stopped run continues. A run whose method,
    model, data, metrics or options have changed since is refused. A line with the main metric is
    printed when a run ends. Rounds are computed in the context that `train` chooses.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> x, y = np.ones([6, 4, 4, 1], np.float32), np.arange(6) % 3
        >>> dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, y, x, y)] * 4, 3)
        >>> methods = {"Local": tff_pfl.make("local", model, local)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     compared = tff_pfl.compare(dataset, methods, rounds=1, folder=folder)
        ...     list(compared.table().index)
        Local, seed 0 (1 of 1): personalized/local_test/accuracy ...
        ['Local']

    Args:
        dataset: The data of all runs, or a function from a seed to the data of its runs. With one
            data set, seeds differ in initial weights, cohorts and batches only; with a function
            that partitions data by the seed, they also differ in the clients.
        methods: The methods by labels, made by `tff_pfl.make`.
        rounds: The number of rounds of each run.
        seeds: The seeds. Each method has a run for each seed.
        clients_per_round: The number of clients in a cohort; by default all clients.
        evaluate_every: Rounds between evaluations; 0: only after the last round.
        evaluate: See `train`.
        participation: See `train`.
        early_stop: See `train`.
        accountant: Computes epsilon of methods with noise, made by `tff_pfl.privacy`. By default
            its cohorts are those of the runs, and its delta is `privacy.default_delta`.
        baseline: The label that gains are over; by default the first one.
        folder: The folder of the runs.
        overwrite: Whether to delete earlier runs of these methods and seeds.
        tracker: A name in `tff_pfl.experiment.TRACKERS` that also receives the metrics.

    Raises:
        KindError: A method was not made by `tff_pfl.make`, or the data set is of another class.
        OutputDirectoryError: A run in the folder is of another method, model or data, or of other
            options.
        ValueError: A label, a seed or a number is wrong; the cohorts differ from those of
            `accountant`; no client has examples to evaluate on; or see `train`.
    """
    _check(methods, seeds, baseline)
    _check_accountant(accountant, methods)
    check_tracker(tracker)
    evaluate, seeds = evaluate or EvaluationOptions(), list(map(int, seeds))
    data = {seed: dataset(seed) if callable(dataset) else dataset for seed in seeds}
    tip = (
        "FederatedDataset.from_dataframe makes one of a data frame, tff_pfl.federate of a data set."
    )
    for of_seed in data.values():
        check_kind("The data set", of_seed, FederatedDataset, tip)
        _check_evaluated(of_seed, evaluate.split)
    options = {
        "rounds": rounds,
        "evaluate_every": evaluate_every,
        "evaluate": evaluate,
        "participation": participation,
        "early_stop": early_stop,
    }
    runs, root = [], pathlib.Path(folder)
    with runtime.current_or_graph_context():
        for label, algorithm in methods.items():
            process = compose(algorithm, data[seeds[0]].examples_type)
            participation.check_process(process)
            computation = of_computations(process, algorithm.made_of.model)
            for seed in seeds:
                path = root / folder_name(label) / f"seed{seed}"
                size = clients_per_round or data[seed].num_clients
                algorithm.made_for.check(data[seed].num_clients, size)
                of_run = label, seed, algorithm, data[seed], path, size
                run = ComparedRun(*of_run, computation, options, accountant)
                runs.append(run)
                if not overwrite:
                    run.check_folder()
        found = _record(root, runs, baseline or next(iter(methods)))
        runs.sort(key=lambda run: seeds.index(run.seed))
        with progress_bar(total=rounds * len(runs), unit="round") as bar:
            for number, run in enumerate(runs):
                bar.set_description(run.title)
                result = run.train(overwrite, tracker, Ticks(bar, rounds * number))
                bar.update(rounds * (number + 1) - bar.n)
                what = "was finished before" if result is None else in_short(result)
                bar.write(f"{run.title} ({number + 1} of {len(runs)}): {what}")
    return Comparison(found, runs)


def _check(methods, seeds, baseline) -> None:
    """Checks the labels, the methods and the seeds before anything is trained."""
    if not isinstance(methods, Mapping) or not methods:
        raise KindError(f'The methods must be a mapping such as {{"Ditto": ...}}, got {methods!r}.')
    each(whole(0), fewest=1).check("seeds", list(seeds) if isinstance(seeds, range) else seeds)
    if len(set(seeds)) < len(seeds):
        raise RangeError(f"seeds must be different, got {seeds!r}.")
    check_names("baseline", filter(None, [baseline]), methods)
    folders = {}
    for label, algorithm in methods.items():
        tip = "tff_pfl.make('ditto', model, local) makes one."
        check_kind(f"The method {label!r}", algorithm, Algorithm, tip)
        if algorithm.made_of is None:
            raise KindError(
                f"The method {label!r} does not say of which model and local training it was made. "
                "Register its function by tff_pfl.ALGORITHMS.register, and make it by tff_pfl.make."
            )
        other = folders.setdefault(folder_name(label), label)
        if other != label or not folder_name(label):
            raise ValueError(
                f"The label {label!r} names no folder of its own. Labels must differ in letters or "
                "digits."
            )


def _check_accountant(accountant, methods) -> None:
    """Checks that there is noise to account for."""
    if accountant is None:
        return
    tip = "tff_pfl.privacy.Accountant(num_clients, clients_per_round, delta) makes one."
    check_kind("The accountant", accountant, Accountant, tip)
    if all(algorithm.noise_multiplier is None for algorithm in methods.values()):
        raise ValueError(
            "There is an accountant, but no method has noise. Add it by "
            "tff_pfl.privacy.with_privacy, or leave out the accountant."
        )


def _check_evaluated(dataset, split) -> None:
    """Checks that there are examples to compare the methods on."""
    if not dataset.sizes(split).any():
        raise ExamplesError(
            f"Methods are compared on {split} examples, but no client of {dataset.name!r} has any. "
            "Cut some of the rows off for that, or pass evaluate=EvaluationOptions(split=...)."
        )


def _record(root, runs, baseline) -> Runs:
    """Adds the runs to the record of a study, by which `read` finds them, and returns them."""
    root.mkdir(parents=True, exist_ok=True)
    before, folders = read_record(root), {}
    for run in runs:
        folders.setdefault(run.label, []).append(run.path)
    variants = dict(before.get("variants", {}))
    for label, paths in folders.items():
        relative = [os.path.relpath(path, root) for path in paths]
        others = [path for path in variants.get(label, []) if is_run(root / path)]
        variants[label] = list(dict.fromkeys([*others, *relative]))
    record = {"title": root.name, "baseline": baseline, "variants": variants}
    write_json(str(root / STUDY), {**before, **record})
    planned = {label: len(paths) for label, paths in folders.items()}
    return Runs(root.name, folders, planned, baseline)


class Comparison:
    """The runs of several methods, as a table, as data frames and as figures.

        compared = tff_pfl.Comparison("runs/compare")     # or what tff_pfl.compare returns
        compared.table()
        compared.plot_clients()

    Arguments `column` name a quantity as "MODEL/POOL/QUANTITY", such as "global/local_test/loss",
    or as "loss" for each client's own model. By default it is the main one. Arguments `baseline`
    are labels, by default the baseline of the runs. Arguments `evaluation` name one of
    `summary.json`: "final", after the last round, or "best_on_validation", "best_on_test" or
    "late_mean".

    Attributes:
        runs: The runs by labels. All functions of `tff_pfl.analysis` that read runs take them.
    """

    def __init__(self, runs: Any, trained: Sequence[ComparedRun] = ()):
        """Finds the finished runs.

        Args:
            runs: The runs, or what names them; see `read`.
            trained: The runs of a call of `compare`, which `export` and others need.
        """
        self.runs = (runs if isinstance(runs, Runs) else read(runs)).finished
        self._trained = trained

    def table(
        self,
        column: str | None = None,
        *,
        baseline: str | None = None,
        evaluation: str = "final",
    ) -> pd.DataFrame:
        """Returns a row for each method, indexed by label.

        A method exactly as good as the baseline hurts about as many clients as it helps, because
        few test examples make single values noisy: compare `hurt` with `helped`. The interval and
        the p value assume independent seeds, and are not corrected for the number of methods. If
        seeds cut the same rows anew, they share most training rows, and the interval is too narrow.
        Seeds that repeat one run count once. The columns' name says when it is not the last
        evaluation that is shown, and that "best_on_test" is chosen on the examples that it reports.

        Returns:
            The quantity, such as `accuracy`: its mean over clients, averaged over seeds, or NaN if
            a run's mean is not finite. `std`: the standard deviation of these means over seeds.
            `median`: its median over clients, averaged over seeds. `gain`: the mean improvement of
            the same clients over the baseline, positive if they are better, for errors, too;
            `gain_low` and `gain_high`, its 95 % interval, and `p_value`, by `paired_test`. `hurt`
            and `helped`: the shares of clients, over all seeds, that are worse and better than
            under the baseline; the rest are equal. `clients`: the number of clients with a value,
            averaged over seeds; clients without test examples have none. `seeds`: the number of
            seeds. `rounds`, if runs differ in it: their number, averaged over seeds. `bytes_up`:
            bytes that a client sends in a round. `round_seconds`: median seconds of a round.
            `epsilon`, if a method has noise: the largest of its runs, for all rounds; infinite
            without privacy.
        """
        column, baseline = self._column(column), self._baseline(baseline)
        return method_table(self.runs, column, baseline, evaluation)

    def clients(self, column: str | None = None, *, evaluation: str = "final") -> pd.DataFrame:
        """Returns the quantity of each client.

        Returns:
            A row for each client of each seed, indexed by `seed` and `client_id`, and a column for
            each method; see `client_values`.
        """
        return paired.client_values(self.runs, self._column(column), evaluation)

    def plot(self, column: str | None = None):
        """Draws the quantity against the round, with a line for each method; see `plot_curves`."""
        return curves.plot_curves(self.runs.metrics, self._column(column))

    def plot_clients(
        self,
        column: str | None = None,
        *,
        baseline: str | None = None,
        evaluation: str = "final",
    ):
        """Draws each client's quantity against that under the baseline, a panel for each method.

        Circles are clients that are not worse than under the baseline, triangles those that are:
        below the diagonal, for errors above it. Axes of errors that differ by more than a factor
        of 10 are logarithmic.
        """
        column, baseline = self._column(column), self._baseline(baseline)
        pairs = paired.against(self.clients(column, evaluation=evaluation), baseline)
        quantity = self.runs.quantities[MetricName.parse(column).quantity]
        when = EVALUATIONS[evaluation][1]
        return paired.plot_against_local(pairs, quantity, baseline, when)

    def export(
        self, method: str, output: Path, clients: Iterable | None = None, *, seed: int | None = None
    ) -> ExportedRun:
        """Writes the models of a method's run, by default of the first seed; see `export_models`.

        Only a comparison that `compare` returned knows the methods and the data.

        Raises:
            ValueError: The method or the seed does not exist, or `compare` did not return this.
            OutputDirectoryError: See `export_models`.
        """
        return export_models(*self._trained_run(method, seed).parts, output, clients)

    def predictions(self, method: str, *, seed: int | None = None) -> pd.DataFrame:
        """Predicts the examples of all clients, by default by the models of the first seed.

        Returns:
            A row for each example, in the columns of `Predictions.columns`. The examples are those
            that `compare` evaluated; outputs for several classes are arrays.

        Raises:
            ValueError: See `export`.
        """
        run = self._trained_run(method, seed)
        process, model, dataset, path = run.parts
        with trained_run(process, model, dataset, path) as found:
            evaluator = Evaluator(process, model, dataset, run.options["evaluate"])
            predicted = evaluator.predictions(found.server_state, found.source)
        return pd.DataFrame({name: list(values) for name, values in predicted.columns().items()})

    def export_new_clients(
        self,
        method: str,
        new_clients: FederatedDataset,
        output: Path,
        *,
        fine_tune_epochs: int,
        seed: int | None = None,
    ) -> ExportedRun:
        """Writes a model for each client that did not train; see `tff_pfl.export_new_clients`.

        The clients fine-tune by the local training of which the method was made. For the method and
        the seed, see `export`.
        """
        run = self._trained_run(method, seed)
        made_of, epochs = run.algorithm.made_of, fine_tune_epochs
        method = run.process, made_of.model, made_of.local
        return export_new_clients(
            *method, new_clients, run.path, output, fine_tune_epochs=epochs, seed=run.seed
        )

    def _trained_run(self, method, seed) -> ComparedRun:
        if not self._trained:
            raise ValueError(
                "A comparison of folders knows no methods and data. Repeat the call of "
                "tff_pfl.compare, which trains nothing again, and use what it returns."
            )
        check_names("method", [method], dict.fromkeys(run.label for run in self._trained))
        runs = {str(run.seed): run for run in self._trained if run.label == method}
        seed = next(iter(runs)) if seed is None else str(seed)
        check_names("seed", [seed], runs)
        return runs[seed]

    def _column(self, column: str | None) -> str:
        of_models = self.runs.clients("final").query("model != ''")
        return frames.column_of(of_models, column)

    def _baseline(self, baseline: str | None) -> str:
        check_names("baseline", filter(None, [baseline]), self.runs.folders)
        return baseline or self.runs.baseline

    def __repr__(self) -> str:
        """Returns the table as text."""
        return self.table().to_string(float_format="{:.4g}".format, na_rep="")

    def _repr_html_(self) -> str:
        """Returns the table for notebooks."""
        return self.table().to_html(float_format="{:.4g}".format, na_rep="")

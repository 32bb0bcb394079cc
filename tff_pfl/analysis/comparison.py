"""Trains experiments with several seeds, and compares them as studies compare configs."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.analysis import curves, frames, paired
from tff_pfl.analysis.metric_text import EVALUATIONS
from tff_pfl.analysis.results import method_table
from tff_pfl.analysis.runs import STUDY, Path, Runs, is_run, read, read_record
from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import RangeError, each, whole
from tff_pfl.arguments.settings import NUMBERS
from tff_pfl.arguments.tracebacks import with_short_tracebacks
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import MetricName, main_metric
from tff_pfl.experiment import Experiment, Run, train
from tff_pfl.experiment.identity import OF_SOFTWARE, fingerprints
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    changed_settings,
    has_begun,
    own_folder,
)
from tff_pfl.experiment.summary import Result, finished_summary
from tff_pfl.experiment.trackers import check_trackers
from tff_pfl.output.files import folder_name, write_json
from tff_pfl.output.progress import Bar, progress_bar
from tff_pfl.templates import Algorithm

Data = FederatedDataset | Callable[[int], FederatedDataset]
"""The data of all runs, or a function from a run's seed to its data."""


@with_short_tracebacks
def compare(
    experiments: Mapping[str, Experiment | Callable[[int], Experiment]] | Data,
    methods: Mapping[str, Algorithm] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    baseline: str | None = None,
    folder: Path | None = None,
    overwrite: bool = False,
    tracker: str | None = None,
    **options: Any,
) -> "Comparison":
    """Trains each experiment with each seed, and compares what every client gets.

        compare({"Local": experiment, "Ditto": replace(experiment, algorithm=ditto)}, seeds=(0, 1))
        compare(dataset, {"Local": local, "Ditto": ditto}, rounds=30, seeds=(0, 1))      # in short

    Each run has a folder as `programs/train.py` writes it, such as
    `runs/compare/Ditto/seed0-1f0c8a3e`, whose name covers all that the results depend on: finished
    runs are not trained again, stopped ones continue, and an experiment that has changed is a new
    run. `report.py` and `tff_pfl.analysis` read `runs/compare` as a study, the runs of the last
    call. A line with the main metric is printed when a run ends. Rounds are computed in the context
    that `train` chooses.

    With a `folder`, the runs are `FOLDER/LABEL/seed0`, and the study has the runs of all calls. A
    run whose experiment has changed since, in its method, model, data, metrics or options, is
    refused.

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
        experiments: The experiments by labels, whose seed is replaced; or functions from a seed to
            an experiment. In short, the data of all runs, or a function from a seed to the data of
            its runs. With one data set, seeds differ in initial weights, cohorts and batches only;
            with a function that partitions data by the seed, they also differ in the clients.
        methods: In short, the algorithms by labels, made by `tff_pfl.make`.
        seeds: The seeds. Each label has a run for each seed.
        baseline: The label that gains are over; by default the first one.
        folder: The folder of the study, in place of `runs/compare`.
        overwrite: Whether to train runs again that are there.
        tracker: A name in `tff_pfl.experiment.TRACKERS` that also receives the metrics.
        **options: In short, further fields of `Experiment`, such as `rounds`. An accountant counts
            for the methods with noise.

    Raises:
        KindError: See `Experiment`.
        OutputDirectoryError: A run in the folder is of another experiment.
        ValueError: A label or a seed is wrong; no client has examples to evaluate on; or see
            `Experiment`.
    """
    if methods is not None or not isinstance(experiments, Mapping):
        experiments = _of_methods(experiments, methods, options)
    elif options:
        raise TypeError(f"compare has no argument {min(options)!r}: set it in the experiments.")
    _check(experiments, seeds, baseline)
    trackers = [tracker] if tracker else []
    check_trackers(trackers)
    root = pathlib.Path(folder or "runs/compare").expanduser()
    runs, settings = {}, {}
    with runtime.current_or_graph_context():
        for label, of_label in experiments.items():
            process = None
            for seed in map(int, seeds):
                experiment = _experiment(label, of_label, seed)
                if process is None:  # of the same seed, so that those of all seeds are equal
                    process = dataclasses.replace(experiment, seed=0).process
                of_seed, prints = f"seed{seed}", fingerprints(experiment.members, process)
                settings[label, seed] = {**experiment.settings, "fingerprints": prints}
                parent = root / folder_name(label)
                path = parent / of_seed
                if not folder:
                    path = own_folder(parent, of_seed, settings[label, seed])
                elif not overwrite:
                    _check_folder(path, settings[label, seed])
                runs[label, seed] = Run(path, experiment)
        found = _record(root, runs, baseline or next(iter(experiments)), keeps=bool(folder))
        _train(runs, settings, overwrite, trackers)
    return Comparison(found, runs)


def _of_methods(data, methods, options) -> dict[str, Callable[[int], Experiment]]:
    """Returns the experiments of the short form of `compare`, as functions of the seed."""
    if not isinstance(methods, Mapping) or not methods:
        raise KindError(f'The methods must be a mapping such as {{"Ditto": ...}}, got {methods!r}.')
    for label, algorithm in methods.items():
        tip = "tff_pfl.make('ditto', model, local) makes one."
        check_kind(f"The method {label!r}", algorithm, Algorithm, tip)
    accountant = options.pop("accountant", None)
    if accountant and all(it.noise_multiplier is None for it in methods.values()):
        raise ValueError(
            "There is an accountant, but no method has noise. Add it by "
            "tff_pfl.privacy.with_privacy, or leave out the accountant."
        )
    data_of = functools.cache(data if callable(data) else lambda seed: data)

    def of(algorithm, seed):
        counts = {} if algorithm.noise_multiplier is None else {"accountant": accountant}
        return Experiment(algorithm, data_of(seed), seed=seed, **options, **counts)

    return {label: functools.partial(of, algorithm) for label, algorithm in methods.items()}


def _check(experiments, seeds, baseline) -> None:
    """Checks the labels and the seeds before anything is trained."""
    each(whole(0), fewest=1).check("seeds", list(seeds) if isinstance(seeds, range) else seeds)
    if len(set(seeds)) < len(seeds):
        raise RangeError(f"seeds must be different, got {seeds!r}.")
    check_names("baseline", filter(None, [baseline]), experiments)
    folders: dict[str, str] = {}
    for label in experiments:
        other = folders.setdefault(folder_name(label), label)
        if other != label or not folder_name(label):
            raise ValueError(
                f"The label {label!r} names no folder of its own. Labels must differ in letters or "
                "digits."
            )


def _experiment(label, of_label, seed) -> Experiment:
    """Returns the experiment of a label and a seed."""
    if isinstance(of_label, Experiment):
        experiment = dataclasses.replace(of_label, seed=seed)
    else:
        experiment = of_label(seed)
    check_kind(f"The experiment {label!r}", experiment, Experiment)
    experiment.check_evaluated()
    return dataclasses.replace(experiment, label=f"{label}, seed {seed}")


def _check_folder(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
    """Raises an error if the folder has a run of other settings, which it would show."""
    changes = changed_settings(folder, settings) if has_begun(folder) else []
    changed = [change for change in changes if change.what == NUMBERS]
    if known := [it for it in changed if it.key not in OF_SOFTWARE] or changed:
        raise OutputDirectoryError(
            f"{folder} is a run of something else ({'; '.join(map(str, known[:3]))}). Pass "
            "overwrite=True to train it again, another folder, or none, so that it has its own."
        )


def _train(
    runs: Mapping[tuple[str, int], Run],
    settings: Mapping[tuple[str, int], Mapping[str, Any]],
    overwrite: bool,
    trackers: Sequence[str],
) -> None:
    """Trains the runs that are not finished, seed by seed."""
    seeds = list(dict.fromkeys(seed for _, seed in runs))
    ordered = sorted(runs, key=lambda label_and_seed: seeds.index(label_and_seed[1]))
    total = sum(run.experiment.rounds for run in runs.values())
    with progress_bar(total=total, unit="round") as bar:
        for number, key in enumerate(ordered):
            run, before = runs[key], bar.n
            experiment = run.experiment
            bar.set_description(experiment.title)
            summary = None if overwrite else finished_summary(run.folder, experiment.rounds)
            if summary is not None and summary.final.round_num <= experiment.rounds:
                what = "was finished before"
            else:
                managers = (*trackers, _Ticks(bar, before))
                directory = RunDirectory(
                    run.folder, settings[key], resume=not overwrite, overwrite=overwrite
                )
                trained = train(experiment, directory, release_managers=managers, verbose=False)
                what = in_short(trained.result)
            bar.update(before + experiment.rounds - bar.n)
            bar.write(f"{experiment.title} ({number + 1} of {len(runs)}): {what}")


class _Ticks(tff.program.ReleaseManager[Mapping[str, float], int]):
    """A release manager that moves a progress bar after each round of a run."""

    def __init__(self, bar: Bar, before: int):
        """Begins after `before` rounds of the bar."""
        self._bar = bar
        self._before = before

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Moves the bar to round `key` of the run."""
        self._bar.update(self._before + key - self._bar.n)


def in_short(result: Result) -> str:
    """Returns the main metric of the last evaluation, and epsilon of a private run, as text."""
    metrics, parts = result.final.metrics, []
    if (main := main_metric(metrics)) is not None:
        parts.append(f"{main._replace(statistic='')} {metrics[main]:.4f}")
    if result.privacy is not None:
        parts.append(f"epsilon {result.privacy['epsilon']:.4g}")
    return ", ".join(parts)


def _record(root, runs, baseline, keeps: bool) -> Runs:
    """Writes the record of a study, by which `read` finds the runs, and returns them.

    If it `keeps` those of earlier calls, these runs are added to them.
    """
    root.mkdir(parents=True, exist_ok=True)
    before = read_record(root)
    folders: dict[str, list[pathlib.Path]] = {}
    for (label, _), run in runs.items():
        folders.setdefault(label, []).append(pathlib.Path(run.folder))
    variants = dict(before.get("variants", {})) if keeps else {}
    for label, paths in folders.items():
        relative = [os.path.relpath(path, root) for path in paths]
        others = [path for path in variants.get(label, []) if is_run(root / path)]
        variants[label] = list(dict.fromkeys([*others, *relative]))
    record = {"title": root.name, "baseline": baseline, "variants": variants}
    write_json(str(root / STUDY), {**before, **record})
    planned = {label: len(paths) for label, paths in folders.items()}
    return Runs(root.name, folders, planned, baseline)


_MAIN = (
    "gain",
    "gain_low",
    "gain_high",
    "p_value",
    "p_holm",
    "hurt",
    "helped",
    "rounds",
    "epsilon",
)


class Comparison:
    """The runs of several methods, as a table, as data frames and as figures.

        compared = tff_pfl.Comparison("runs/compare")     # or what tff_pfl.compare returns
        compared.table()
        compared.plot_clients()
        compared.run("Ditto").export("deployed")          # see `Run`

    Arguments `column` name a quantity as "MODEL/POOL/QUANTITY", such as "global/local_test/loss",
    or as "loss" for each client's own model. By default it is the main one. Arguments `baseline`
    are labels, by default the baseline of the runs. Arguments `evaluation` name one of
    `summary.json`: "final", after the last round, or "best_on_validation", "best_on_test" or
    "late_mean".

    Attributes:
        runs: The runs by labels. All functions of `tff_pfl.analysis` that read runs take them.
    """

    def __init__(self, runs: Any, trained: Mapping[tuple[str, int], Run] = {}):
        """Finds the finished runs.

        Args:
            runs: The runs, or what names them; see `read`.
            trained: The runs of a call of `compare` by label and seed, which `run` returns.
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
        the p values assume independent seeds. Seeds on one partition do not show what another one
        would give; if seeds cut the same rows anew, they share most training rows, and the interval
        is too narrow. Seeds that repeat one run count once. The columns' name says when it is not
        the last evaluation that is shown, and that "best_on_test" is chosen on the examples that it
        reports.

        Returns:
            The quantity, such as `accuracy`: its mean over clients, averaged over seeds, or NaN if
            a run's mean is not finite. `std`: the standard deviation of these means over seeds.
            `median`: its median over clients, averaged over seeds. `gain`: the mean improvement of
            the same clients over the baseline, positive if they are better, for errors, too;
            `gain_low` and `gain_high`, its 95 % interval, and `p_value`, by `paired_test`;
            `p_holm`, if there are several p values: corrected for their number, by `holm`. `hurt`
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

    def run(self, label: str, *, seed: int | None = None) -> Run:
        """Returns the run of a label, by default of the first seed, to evaluate or export it.

        Only a comparison that `compare` returned knows its experiments.

        Raises:
            ValueError: The label or the seed does not exist, or `compare` did not return this.
        """
        if not self._trained:
            raise ValueError(
                "A comparison of folders knows no experiments. Repeat the call of "
                "tff_pfl.compare, which trains nothing again, and use what it returns."
            )
        check_names("label", [label], dict.fromkeys(label for label, _ in self._trained))
        runs = {str(number): run for (of, number), run in self._trained.items() if of == label}
        chosen = next(iter(runs)) if seed is None else str(seed)
        check_names("seed", [chosen], runs)
        return runs[chosen]

    def _column(self, column: str | None) -> str:
        of_models = self.runs.clients("final").query("model != ''")
        return frames.column_of(of_models, column)

    def _baseline(self, baseline: str | None) -> str:
        check_names("baseline", filter(None, [baseline]), self.runs.folders)
        return baseline or self.runs.baseline

    def __repr__(self) -> str:
        """Returns the main columns of the table, and notes, as text."""
        shown, notes = self._in_short()
        return "\n".join([shown.to_string(float_format=_text_of(shown), na_rep=""), *notes])

    def _repr_html_(self) -> str:
        """Returns the main columns of the table, and notes, for notebooks."""
        shown, notes = self._in_short()
        html = shown.to_html(float_format=_text_of(shown), na_rep="")
        return html + "".join(f"<p>{note}</p>" for note in notes)

    def _in_short(self) -> tuple[pd.DataFrame, list[str]]:
        table = self.table()
        main = [table.columns[0], *_MAIN]
        known = [name for name in main if name in table and table[name].notna().any()]
        notes = [f"table() has further columns: {', '.join(table.columns.drop(known))}."]
        gains = table["gain"].dropna()
        if len(gains) and not (gains > 0).any():
            notes.insert(0, f"No method is better than {self.runs.baseline} on average.")
        return table[known], notes


def _text_of(table: pd.DataFrame) -> Callable[[float], str]:
    """Returns the format of numbers: three decimals, or three digits of a small quantity."""
    return ("{:.3f}" if table.iloc[:, 0].abs().max() >= 0.1 else "{:.3g}").format

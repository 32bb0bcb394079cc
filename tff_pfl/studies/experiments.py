"""Trains experiments with several seeds, and compares them as studies compare configs."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.analysis.comparison import Comparison
from tff_pfl.analysis.runs import STUDY, Path, Runs, is_run, read_record
from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import RangeError, each, whole
from tff_pfl.arguments.settings import NUMBERS
from tff_pfl.arguments.tracebacks import with_short_tracebacks
from tff_pfl.cluster.recipes import Recipe
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import main_metric
from tff_pfl.experiment import Experiment, Run, train
from tff_pfl.experiment.identity import OF_SOFTWARE, fingerprints
from tff_pfl.experiment.recipe import NoRecipeError
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
from tff_pfl.studies.engines import Engine, open_engine
from tff_pfl.studies.trainings import train_all, train_experiment
from tff_pfl.templates import Algorithm

if TYPE_CHECKING:
    import distributed

_Runs = Mapping[tuple[str, int], Run]  # by label and seed

Data = FederatedDataset | Callable[[int], FederatedDataset]
"""The data of all runs, or a function from a run's seed to its data."""


class RunFailedError(RuntimeError):
    """An error for runs that other processes could not train."""


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
    jobs: int = 1,
    client: "distributed.Client | None" = None,
    **options: Any,
) -> Comparison:
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

    With several `jobs`, or the `client` of a Dask cluster, other processes train the runs. They get
    the parts of an experiment by their names, so that these must have some: `load`, `federate`,
    `models.build` and the registries give them. The output of a run is in `seed0-1f0c8a3e.log`.

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
        jobs: The number of runs trained at a time, each in a process of its own; 1: in this one.
        client: A Dask client, whose workers train the runs. They must see the folder.
        **options: In short, further fields of `Experiment`, such as `rounds`. An accountant counts
            for the methods with noise.

    Raises:
        ClusterError: A worker does not fit, or the cluster has ended.
        KindError: See `Experiment`.
        OutputDirectoryError: A run in the folder is of another experiment.
        RunFailedError: Another process failed to train a run.
        ValueError: A label or a seed is wrong; no client has examples to evaluate on; a part has no
            name, but other processes are to train the runs; or see `Experiment`.
    """
    if methods is not None or not isinstance(experiments, Mapping):
        experiments = _of_methods(experiments, methods, options)
    elif options:
        raise TypeError(f"compare has no argument {min(options)!r}: set it in the experiments.")
    _check(experiments, seeds, baseline)
    is_here = jobs == 1 and client is None
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
        recipes = {} if is_here else _recipes(runs, settings, tracker)
        found = _record(root, runs, baseline or next(iter(experiments)), keeps=bool(folder))
        waiting = _unfinished(runs, overwrite)
        if is_here:
            _train(waiting, settings, overwrite, trackers)
        elif waiting:
            if overwrite:
                _start_over(waiting, settings)
            with open_engine(jobs, client=client, shared=root) as engine:
                _train_by(engine, waiting, recipes, root)
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


def _unfinished(runs: _Runs, overwrite: bool) -> _Runs:
    """Returns the runs to train, seed by seed, and prints which ones were finished before."""
    seeds = list(dict.fromkeys(seed for _, seed in runs))
    waiting = {}
    for key in sorted(runs, key=lambda label_and_seed: seeds.index(label_and_seed[1])):
        run, rounds = runs[key], runs[key].experiment.rounds
        summary = None if overwrite else finished_summary(run.folder, rounds)
        if summary is not None and summary.final.round_num <= rounds:
            print(f"{run.experiment.title}: was finished before")
        else:
            waiting[key] = run
    return waiting


def _train(
    runs: _Runs,
    settings: Mapping[tuple[str, int], Mapping[str, Any]],
    overwrite: bool,
    trackers: Sequence[str],
) -> None:
    """Trains runs in this process."""
    total = sum(run.experiment.rounds for run in runs.values())
    with progress_bar(total=total, unit="round") as bar:
        for number, (key, run) in enumerate(runs.items(), start=1):
            experiment, before = run.experiment, bar.n
            bar.set_description(experiment.title)
            managers = (*trackers, _Ticks(bar, before))
            directory = RunDirectory(
                run.folder, settings[key], resume=not overwrite, overwrite=overwrite
            )
            trained = train(experiment, directory, release_managers=managers, verbose=False)
            bar.update(before + experiment.rounds - bar.n)
            bar.write(f"{experiment.title} ({number} of {len(runs)}): {in_short(trained.result)}")


def _recipes(runs, settings, tracker) -> dict[tuple[str, int], Recipe]:
    """Returns the recipes of runs.

    Raises:
        ValueError: A part of an experiment has no name.
    """
    recipes = {}
    for key, run in runs.items():
        title = run.experiment.title
        try:
            _ = run.experiment.recipe
        except NoRecipeError as error:
            raise ValueError(
                f"{title!r} cannot be trained by other processes, which know parts by their names. "
                f"{error} Name it, or leave out jobs and client."
            ) from error
        recipes[key] = Recipe.of(settings[key], tracker, title)
    return recipes


def _start_over(runs: _Runs, settings) -> None:
    """Deletes runs here, because a process that takes the place of another one resumes."""
    for key, run in runs.items():
        with RunDirectory(run.folder, settings[key], overwrite=True):
            pass


def _train_by(engine: Engine, runs: _Runs, recipes, root: pathlib.Path) -> None:
    """Trains runs by an engine."""
    names = {os.path.relpath(run.folder, root): key for key, run in runs.items()}
    failed = []
    with progress_bar(total=len(runs), unit="run") as bar:
        waiting = {name: recipes[key] for name, key in names.items()}
        ended = train_all(waiting, root, engine, bar, train=train_experiment)
        for number, (name, problem) in enumerate(ended, start=1):
            run = runs[names[name]]
            if problem is not None:
                failed.append(f"{run.experiment.title} failed: {problem}")
            what = in_short(run.result) if problem is None else f"failed: {problem}"
            bar.update(1)
            bar.write(f"{run.experiment.title} ({number} of {len(runs)}): {what}")
    if failed:
        raise RunFailedError(
            f"{len(failed)} of {len(runs)} runs failed, first {failed[0]} The folders' .log files "
            "have their whole output. The same call continues them."
        )


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

"""Runs a study: a process a run, several at a time, none twice."""

import concurrent.futures
import contextlib
import fcntl
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence

import tqdm

from tff_pfl.experiment.run_directory import CHECKPOINT
from tff_pfl.experiment.summary import finished_summary
from tff_pfl.files import write_json
from tff_pfl.studies import tied
from tff_pfl.studies.records import RECORD, read_record
from tff_pfl.studies.searched import extend
from tff_pfl.studies.shared_examples import note, shares_chosen_with
from tff_pfl.studies.study import Run, Study, StudyError
from tff_pfl.studies.tuning import TUNING, Scores

# Title, baseline, and of each variant the folders of its runs and what was chosen, for reports.
VARIANTS = "variants.json"


def run_study(
    study: Study,
    output_dir: str | os.PathLike,
    program: str | os.PathLike,
    jobs: int = 1,
    *,
    keep_checkpoints: bool = True,
) -> list[Run]:
    """Runs what of a study is not finished: first what settings are chosen by, then the rest.

    A run that was stopped goes on; one that fails is reported, and stops no other.

    Args:
        study: The study.
        output_dir: Of the study; each run has a folder in it.
        program: The training program, such as `programs/train.py`.
        jobs: Runs at a time.
        keep_checkpoints: Whether the runs of the table keep theirs once they are finished. Without
            one, a run is in all reports as before, but cannot go on or be evaluated again.

    Returns:
        The runs that failed.

    Raises:
        OSError: If a record of the study cannot be written.
        OutputDirectoryError: If a record is damaged.
        StudyError: If the directory is a file; if a run of it was one of other settings, or its
            searches were others; a study is run there already; or Vizier fails.
    """
    root = pathlib.Path(output_dir)
    if root.exists() and not root.is_dir():
        raise StudyError(f"{root} is a file, not a directory.")
    root.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as resources:
        resources.enter_context(_alone_in(root))
        pool = _Pool(root, program, jobs, study.title, total=_count(study))
        resources.enter_context(pool)
        chosen = None
        if study.tuning is not None:
            scores = _tune(study, pool)
            study, chosen = scores.study, scores.chosen()
            for label in study.variants.keys() - chosen.keys():
                pool.write(f"{label}: no trial has a finite score, so that it is not run.")
        runs = list(study.runs(chosen))
        pool.expect(runs)
        _record(root, study, runs)
        pool.run(runs, keep_checkpoints)
        if chosen and (shares := shares_chosen_with(study, root, chosen)):
            pool.write(note(shares))
    return pool.failed


def chosen_trials(study: Study, output_dir: str | os.PathLike) -> dict[str, str]:
    """The trial that the runs of each variant have in a study's directory, by labels.

    It is the one with the best score; but for runs that were there before that score was.

    Raises:
        OutputDirectoryError: If a record is damaged.
        StudyError: If there are trials of other searches.
    """
    recorded = read_record(pathlib.Path(output_dir) / RECORD)
    scores = Scores(study, output_dir)
    study, chosen = scores.study, scores.chosen()
    for label in chosen:
        for trial in study.trials(label):
            run = next(study.runs({label: trial}))
            if recorded.get(run.folder) == list(run.flags):
                chosen[label] = trial
    return chosen


def _tune(study, pool: "_Pool") -> Scores:
    """Runs all trials, those that searches choose as well."""
    stages = study.tuning.stages
    while True:
        scores = Scores(study, pool.root)
        for rounds in stages:
            _run_stage(scores.study, scores, rounds, pool)

        def score_of(label, trial, scores=scores):
            return scores.quality(label, trial, stages[-1])

        if not extend(study, pool.root, score_of):
            return scores


def _trials(study, scores, rounds) -> tuple[list[Run], list[Run]]:
    """The runs of a stage's trials: those without a score, and those with one."""
    runs = [], []
    for label, trial in scores.candidates(rounds):
        runs[scores.has(label, trial, rounds)].extend(study.tuning_runs(label, trial, rounds))
    return runs


def _run_stage(study, scores, rounds, pool: "_Pool") -> None:
    new, known = _trials(study, scores, rounds)
    _record(pool.root, study, new, known)
    pool.leave_out(known)
    for run in new:
        summary = finished_summary(pool.root / run.folder, rounds)
        has_gone_on = summary is not None and summary.final.round_num > (rounds or math.inf)
        if has_gone_on and summary.stopped is None:
            raise StudyError(
                f"{pool.root / run.folder} has done {summary.final.round_num} rounds: what it had "
                f"reached after {rounds} is not known any more, and cannot be compared. Give "
                "another output directory."
            )
    pool.run(new)
    for label, trial in scores.candidates(rounds):
        runs = study.tuning_runs(label, trial, rounds)
        summaries = [finished_summary(pool.root / run.folder, rounds) for run in runs]
        if None not in summaries:
            scores.add(label, trial, rounds, summaries)


@contextlib.contextmanager
def _alone_in(root: pathlib.Path) -> Iterator[None]:
    """Two that go on with a study would take each other's runs for failed ones."""
    directory = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise StudyError(
            f"A study is run in {root} already. Wait until it is done, stop it, or give another "
            "output directory."
        ) from e
    else:
        yield
    finally:
        os.close(directory)


class _Pool:
    """Processes of runs, which end when the study is interrupted."""

    def __init__(self, root, program, jobs, title, total):
        self.failed = []
        self.root = root
        self._program = os.fspath(program)
        self._bar = tqdm.tqdm(total=total, desc=title, unit="run")
        self._executor = concurrent.futures.ThreadPoolExecutor(jobs)
        self._processes = {}
        self._counted = set()
        self._stopped = False
        self._lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with self._lock:
            self._stopped = True
            for process in self._processes.values():
                process.send_signal(signal.SIGTERM)  # not Ctrl-C, which it may have to ignore
        self._executor.shutdown(cancel_futures=True)
        self._bar.close()

    def run(self, runs: Iterable[Run], keep_checkpoints: bool = True) -> None:
        """Runs those that are not finished, and waits for them."""
        runs = list(runs)
        todo = [
            run
            for run in runs
            if run not in self.failed
            and finished_summary(self.root / run.folder, run.rounds) is None
        ]
        self.leave_out(set(runs) - set(todo))
        if not keep_checkpoints:
            for run in set(runs) - set(todo):
                self._discard_checkpoint(run)
        futures = {self._executor.submit(self._run, run): run for run in todo}
        for future in concurrent.futures.as_completed(futures):
            run = futures[future]
            if future.result() != 0:
                self.failed.append(run)
                log = pathlib.Path(f"{self.root / run.folder}.log")
                self._bar.write(f"{run.folder} failed: {_reason(log)}\n  {log} has all it printed.")
            elif not keep_checkpoints:
                self._discard_checkpoint(run)
            self.leave_out([run])

    def expect(self, runs: Iterable[Run]) -> None:
        """Counts as all of the study what was counted so far, and these runs."""
        self._bar.total = len(self._counted | set(runs))
        self._bar.refresh()

    def leave_out(self, runs: Iterable[Run]) -> None:
        """Counts runs as finished, each once."""
        new = set(runs) - self._counted
        self._counted |= new
        self._bar.update(len(new))

    def write(self, message: str) -> None:
        """Prints a line above the progress bar."""
        self._bar.write(message)

    def _discard_checkpoint(self, run):
        path = self.root / run.folder / CHECKPOINT
        if path.exists():
            shutil.rmtree(path)

    def _run(self, run: Run) -> int | None:
        """The exit status; `None` of a run that was not started any more."""
        folder = self.root / run.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.log", "w") as log, self._process(run, folder, log) as process:
            return process and process.wait()

    @contextlib.contextmanager
    def _process(self, run, folder, log) -> Iterator[subprocess.Popen | None]:
        rounds = [] if run.rounds is None else [f"--config.rounds={run.rounds}"]
        with self._lock:
            if self._stopped:
                process = None
            else:
                process = self._processes[run.folder] = subprocess.Popen(
                    [
                        *(sys.executable, tied.__file__, str(os.getpid()), self._program),
                        *(*run.flags, *rounds, f"--output_dir={folder}", "--resume"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the study, which tells its runs once
                )
            self._show()
        try:
            yield process
        finally:
            with self._lock:
                self._processes.pop(run.folder, None)
                self._show()

    def _show(self):
        self._bar.set_postfix_str(", ".join(self._processes))


def _reason(log: pathlib.Path) -> str:
    """The message of a run that failed, or else what it printed last."""
    lines = list(filter(None, map(str.strip, log.read_text(errors="replace").splitlines())))
    last = lines[-3:]  # of which those after a message say where there is more
    messages = [line for line in last if line.startswith("error: ")]
    return (messages or last or ["it printed nothing."])[-1].removeprefix("error: ")


def _count(study: Study) -> int:
    """Runs of a study, where those of several rounds count each time."""
    total = len(study.variants) * len(study.seeds)
    if study.tuning is not None:
        for label in study.variants:
            search = study.search(label)
            left = search.number if search else len(study.trials(label))
            for _ in study.tuning.stages if left > 1 else ():
                total += left * len(study.tuning.seeds)
                left = (left + 1) // 2
    return total


def _record(
    root: pathlib.Path, study: Study, runs: Sequence[Run], scored: Sequence[Run] = ()
) -> None:
    """Writes which settings each run has, and what reports know of the study without its file.

    Args:
        root: The study's directory.
        study: The study.
        runs: Those that are to be run, or have been.
        scored: Others, whose scores are kept, and whose results may be gone.

    Raises:
        StudyError: If what has results, or a score, was run with other settings; then nothing is
            written.
    """
    recorded = read_record(root / RECORD)
    for run in (*runs, *scored):
        found, wanted, is_scored = recorded.get(run.folder), list(run.flags), run in scored
        if found is None and is_scored:
            raise StudyError(
                f"{root / TUNING} has a score of {run.folder}, of which {root / RECORD} has no "
                "settings. Delete its scores, too, or give another output directory."
            )
        if found not in (None, wanted) and (is_scored or (root / run.folder).exists()):
            raise StudyError(
                f"{root / run.folder} is a run of other settings,\n  {' '.join(found)}\nand not\n"
                f"  {' '.join(wanted)}\nDelete it, its entry in {root / RECORD}"
                f"{f' and its scores in {TUNING}' if is_scored else ''}, or give another output "
                "directory."
            )
        recorded[run.folder] = wanted
    write_json(str(root / RECORD), recorded)
    variants = {
        "title": study.title,
        "baseline": study.baseline or next(iter(study.variants)),
        "variants": study.folders(),
        "chosen": chosen_trials(study, root) if study.tuning else {},
    }
    write_json(str(root / VARIANTS), variants)

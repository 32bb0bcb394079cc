"""Trains runs by their recipes, each in its folder and once."""

import contextlib
import dataclasses
import gc
import os
import pathlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping

from tff_pfl import config as configs
from tff_pfl import experiment
from tff_pfl.cluster.recipes import Recipe
from tff_pfl.config.interruption import Terminated
from tff_pfl.output import locks
from tff_pfl.output.progress import Bar
from tff_pfl.runtime.startup import prepare_process
from tff_pfl.studies.engines import Died, Engine

_BUSY = "busy"  # another process trains the run
_INTERRUPTIONS = {128 + signal.SIGINT: KeyboardInterrupt, 128 + signal.SIGTERM: Terminated}


Train = Callable[[Recipe, str, bool], int | str]
"""Trains the run of a recipe in a folder as `train_recipe` does."""


def train_recipe(recipe: Recipe, folder: str, waits: bool = False) -> int | str:
    """Trains a run as `programs/train.py --resume` does, and writes its output to `FOLDER.log`.

    Args:
        recipe: The recipe.
        folder: The run's folder.
        waits: Whether to wait for another process that trains the run.

    Returns:
        The exit code of the program, or "busy" if another process trains the run.
    """

    def work():
        return configs.run_program(recipe.config(), folder, resume=True, tracker=recipe.tracker)

    return _logged(work, folder, waits)


def train_experiment(recipe: Recipe, folder: str, waits: bool = False) -> int | str:
    """Trains a run as `tff_pfl.train` does; see `train_recipe`."""

    def work():
        directory = experiment.RunDirectory(folder, recipe.settings, resume=True)
        made = dataclasses.replace(recipe.experiment(), label=recipe.title)
        trackers = [recipe.tracker] if recipe.tracker else []
        experiment.train(made, directory, release_managers=trackers)

    return _logged(work, folder, waits)


def _logged(work: Callable[[], int | None], folder: str, waits: bool) -> int | str:
    """Does the work of a program on a run, unless another process does, and writes its log."""
    prepare_process()
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(f"{folder}.log", "a") as log:
        try:
            locks.lock(log.fileno(), log.name, waits=waits)
        except BlockingIOError:
            return _BUSY
        if not waits:  # else the other process has written the log
            log.truncate(0)
        with _output_to(log):
            try:
                return configs.exit_code_of(work)
            except Exception:  # a user's code may raise any exception
                traceback.print_exc()
                return 1
            finally:
                gc.collect()  # graphs are cycles, which would add up to 25 MB for each small run


@contextlib.contextmanager
def _output_to(log) -> Iterator[None]:
    """Sends the output of this process, and of its libraries in C, to a file."""
    for output in (sys.stdout, sys.stderr):
        output.flush()
    with (
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
        _replaced(1, log.fileno()),
        _replaced(2, log.fileno()),
    ):
        yield
        log.flush()


@contextlib.contextmanager
def _replaced(descriptor: int, other: int) -> Iterator[None]:
    kept = os.dup(descriptor)
    os.dup2(other, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


def train_all(
    recipes: Mapping[str, Recipe],
    root: str | os.PathLike,
    engine: Engine,
    bar: Bar,
    *,
    train: Train = train_recipe,
) -> Iterator[tuple[str, str | None]]:
    """Trains runs; those that other processes train come last, and are waited for.

    Args:
        recipes: The recipes by names of folders.
        root: The folder of these folders.
        engine: The engine that calls `train`.
        bar: The bar that shows which runs are trained.
        train: Trains a run.

    Yields:
        The name of each run that has ended, and why it failed, or `None`.

    Raises:
        KeyboardInterrupt: A run in this process was interrupted.
    """
    folders = {name: os.path.join(os.path.abspath(root), name) for name in recipes}
    under_way: dict[str, None] = {}

    def started(name):
        under_way[name] = None
        bar.set_postfix_str(", ".join(under_way))

    busy: list[str] = []
    for waits in (False, True):
        if waits and busy:
            bar.write(f"waiting for other programs: they train {', '.join(busy)}", sys.stderr)
        names = list(busy if waits else recipes)
        calls = {name: (recipes[name], folders[name], waits) for name in names}
        for name, outcome in engine(train, calls, started):
            under_way.pop(name, None)
            if outcome == _BUSY:
                busy.append(name)
            elif outcome in _INTERRUPTIONS:
                raise _INTERRUPTIONS[outcome]
            else:
                yield name, _problem(outcome, pathlib.Path(f"{folders[name]}.log"))


def _problem(outcome: int | Died, log: pathlib.Path) -> str | None:
    """Returns why a run failed: the error message in its log, or else its last line."""
    if outcome == 0:
        return None
    if isinstance(outcome, Died):
        return outcome.reason
    lines = list(filter(None, map(str.strip, log.read_text(errors="replace").splitlines())))
    last = lines[-3:]  # lines after a message point to more information
    messages = [line for line in last if line.startswith("error: ")]
    return (messages or last or ["it printed nothing."])[-1].removeprefix("error: ")

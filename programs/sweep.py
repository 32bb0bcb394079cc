"""Runs a study of many trainings and writes a table that compares them.

    sweep.py --config=configs/NAME.py[:CHOICE] --methods=local,ditto --seeds=3 \
        [--config.KEY=VALUE ...] --output_dir=DIR [--jobs=2]
    sweep.py --study=configs/studies/NAME.py[:CHOICE] --output_dir=DIR [--jobs=2] [--part=3/10]

The first form trains methods by one config, each with the seeds 0, 1 and 2. The second form runs
the study of a file, whose variants can differ in more and can be tuned; `tff_pfl.studies.study`
describes it. If a study was stopped or some of its runs failed, the same command continues it;
finished runs are not repeated. A study with tuning first chooses settings on validation data, and
evaluates only these settings on test data.

With `--part=3/10`, a process trains the third of ten parts of the runs. Other processes, on this or
other machines that share DIR, train the other parts at the same time, such as the tasks of a job
array. The one that ends last writes the results of all.

DIR receives a folder for each run, `results.csv` with a row for each run, and `table.md` with a row
for each variant: means and standard deviations over seeds, after the last round. `report.py table`
and `report.py page` show more. DIR/tuning has the runs of tuning, `tuning.db` is Optuna's storage,
and `tuning.csv` has the score of each trial.
"""

import pathlib
import sys

from absl import app, flags

from tff_pfl import analysis, studies
from tff_pfl import config as configs
from tff_pfl.config.interruption import exit_code, interruptible
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.output.files import whole_file, with_home
from tff_pfl.runtime.startup import prepare_process

prepare_process()

_STUDY = flags.DEFINE_string("study", None, "The study's file, with its choice if any; see above.")
_CONFIG = flags.DEFINE_string("config", None, "The config file of all methods; see above.")
_METHODS = flags.DEFINE_list("methods", [], "The methods to train by the config.")
_SEEDS = flags.DEFINE_integer("seeds", 1, "The number of seeds of each method.", lower_bound=1)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The directory of the study's results.")
_settings: dict[str, str] = {}  # the values of flags such as --config.rounds
_JOBS = flags.DEFINE_integer(
    "jobs", 1, "The number of runs trained at a time, each in its own process.", lower_bound=1
)
_SCHEDULER = flags.DEFINE_string(
    "scheduler", "", "The address HOST:PORT of a Dask scheduler, whose workers train the runs."
)
_SCHEDULER_FILE = flags.DEFINE_string(
    "scheduler_file", "", "The file in which a Dask scheduler has written its address."
)
_DASHBOARD = flags.DEFINE_bool("dashboard", False, "Show in a browser what the --jobs do.")
_PART = flags.DEFINE_string("part", "1/1", "The part of the runs to train, PART/PARTS; see above.")
_KEEP_CHECKPOINTS = flags.DEFINE_bool(
    "keep_checkpoints",
    True,
    "Whether the table's finished runs keep their checkpoints, each of which can take hundreds of "
    "megabytes. Reports do not need them, but evaluate.py and resumed runs do.",
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    output_dir = pathlib.Path(_OUTPUT_DIR.value)
    try:
        study = _study()
        with interruptible(), _engine(output_dir) as engine:
            studies.check_settings(study, output_dir)
            failed = studies.run_study(
                study,
                output_dir,
                engine,
                keep_checkpoints=_KEEP_CHECKPOINTS.value,
                part=_part(_PART.value),
            )
        with studies.locked_results(output_dir):
            table = analysis.to_markdown(analysis.results_table(analysis.read(output_dir)))
            with whole_file(output_dir / "table.md") as file:
                file.write(f"{table}\n")
    except (OSError, ValueError, OutputDirectoryError, studies.ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print("Stopped. The same command continues the study.", file=sys.stderr)
        return exit_code(interruption)
    print(table)
    for run in failed:
        folder = output_dir / run.folder
        print(f"Failed: {folder}, see {folder}.log.", file=sys.stderr)
    return 1 if failed else 0


def _engine(output_dir):
    return studies.open_engine(
        _JOBS.value,
        scheduler=_SCHEDULER.value,
        scheduler_file=_SCHEDULER_FILE.value,
        shared=output_dir,
        dashboard=_DASHBOARD.value,
    )


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    return int(number), int(parts)


@flags.validator("part", message="must be PART/PARTS, such as 3/10.")
def _is_a_part(text):
    try:
        number, parts = _part(text)
    except ValueError:
        return False
    return 1 <= number <= parts


def _study():
    if _STUDY.value is not None:
        return studies.load_study(_STUDY.value)
    seeds = range(_SEEDS.value)
    return studies.study_of_methods(_CONFIG.value, _METHODS.value, seeds, _settings)


def _parse_flags(argv):
    """Parses the flags except for settings of the config, which its runs parse."""
    argv = with_home(argv)
    _settings.update(configs.settings_of(argv))
    return app.parse_flags_with_usage(configs.without_settings(argv))


@flags.multi_flags_validator(
    ["study", "config", "methods", "seeds"],
    "Pass --config with --methods, or --study, whose file has the methods, settings and seeds.",
)
def _is_one_form(values):
    if values["study"] is None:
        return values["config"] is not None and bool(values["methods"])
    others = (values["config"], values["methods"], _settings, values["seeds"] != 1)
    return not any(others)


if __name__ == "__main__":
    flags.mark_flags_as_required(["output_dir"])
    app.run(main, flags_parser=_parse_flags)

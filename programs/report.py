"""Draws how runs went.

The mean over clients of a quantity, over the rounds; the columns are those of `clients/round_*.csv`
in the runs' output directories:

    report.py --runs=NAME:DIR,NAME:DIR --column=personalized/local_test/accuracy --output=FILE.png
        [--exclude_clients=0,5] [--log_scale] [--top=3]

Who helps whom, for algorithms that learn it, such as PGFed; the matrices are those of
`snapshots/round_*.npz`:

    report.py --influence=DIR --output=FILE.png [--matrix=alpha]
"""

import sys

from absl import app, flags

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tff_pfl import training  # noqa: E402

_RUNS = flags.DEFINE_list("runs", None, "Names to show and output directories, NAME:DIR.")
_COLUMN = flags.DEFINE_string(
    "column", "personalized/local_test/accuracy", "What is drawn, see above."
)
_INFLUENCE = flags.DEFINE_string("influence", None, "A run's output directory.")
_MATRIX = flags.DEFINE_string("matrix", "alpha", "Of --influence: what is drawn.")
_OUTPUT = flags.DEFINE_string("output", None, "The picture, .png, .pdf or .svg.")
_EXCLUDE_CLIENTS = flags.DEFINE_list("exclude_clients", [], "Ids of clients that are left out.")
_LOG_SCALE = flags.DEFINE_bool("log_scale", False, "Draw on a logarithmic scale.")
_TOP = flags.DEFINE_float("top", None, "Where the vertical axis ends.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    try:
        if _INFLUENCE.value:
            training.plot_influence(_INFLUENCE.value, _OUTPUT.value, _MATRIX.value)
            return 0
        training.plot_curves(
            dict(run.split(":", 1) for run in _RUNS.value),
            _COLUMN.value,
            _OUTPUT.value,
            exclude_clients=map(int, _EXCLUDE_CLIENTS.value),
            log_scale=_LOG_SCALE.value,
            top=_TOP.value,
        )
    except (OSError, training.OutputDirectoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


@flags.validator("runs", "Each is NAME:DIR.")
def _are_named(runs):
    return all(":" in run for run in runs or ())


@flags.validator("exclude_clients", "Ids are integers.")
def _are_ids(values):
    return all(value.isdecimal() for value in values)


if __name__ == "__main__":
    flags.mark_flag_as_required("output")
    flags.mark_flags_as_mutual_exclusive(["runs", "influence"], required=True)
    app.run(main)

"""Draws how runs went.

The mean over clients of a quantity, over the rounds; the columns are those of `clients/round_*.csv`
in the runs' output directories:

    report.py --runs=NAME:DIR,NAME:DIR --column=personalized/local_test/accuracy --output=FILE.png
        [--exclude_clients=0,5] [--log_scale] [--top=3]

How such a quantity is distributed over the clients, at the last evaluation or at that of a round; a
histogram a run. A table is printed: the mean, those of the lowest and the top 5 % of clients, and
the share of clients below a threshold. Clients without examples do not count:

    report.py --histogram=NAME:DIR,NAME:DIR --column=personalized/local_test/accuracy
        --output=FILE.png [--threshold=0.6] [--round=50] [--exclude_clients=0,5]

Who helps whom, for algorithms that learn it, such as PGFed; the matrices are those of
`snapshots/round_*.npz`:

    report.py --influence=DIR --output=FILE.png [--matrix=alpha]

What clients mix their models of, for algorithms such as pFedMB: the parts of each layer, over the
rounds; the clients are by default the first ones:

    report.py --mixtures=DIR --output=FILE.png [--clients=0,5,1,6]

The training loss of a client around the global model, if there is one, and around the client's own,
on a plane of two random directions, both normalised filter by filter; the models are those of the
last checkpoint, the client is by default the one with most training examples. The losses are also
written as numbers, beside the picture: FILE.npz with `axis`, `global` and `personalized`:

    report.py --loss_surface=DIR --output=FILE.png [--client=7] [--surface_points=21]
        [--surface_radius=1.0] [--surface_examples=1000]
"""

import math
import re
import sys

from absl import app, flags

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tff_pfl import experiment, reports, runtime  # noqa: E402

_RUNS = flags.DEFINE_list("runs", None, "Names to show and output directories, NAME:DIR.")
_HISTOGRAM = flags.DEFINE_list("histogram", None, "As --runs: whose clients are shown.")
_COLUMN = flags.DEFINE_string(
    "column", "personalized/local_test/accuracy", "What is drawn, see above."
)
_INFLUENCE = flags.DEFINE_string("influence", None, "A run's output directory.")
_MATRIX = flags.DEFINE_string("matrix", "alpha", "Of --influence: what is drawn.")
_MIXTURES = flags.DEFINE_string("mixtures", None, "A run's output directory.")
_CLIENTS = flags.DEFINE_list("clients", None, "Of --mixtures: ids of who is shown, in this order.")
_OUTPUT = flags.DEFINE_string("output", None, "The picture, .png, .pdf or .svg.")
_EXCLUDE_CLIENTS = flags.DEFINE_list("exclude_clients", [], "Ids of clients that are left out.")
_LOG_SCALE = flags.DEFINE_bool("log_scale", False, "Draw on a logarithmic scale.")
_TOP = flags.DEFINE_float("top", None, "Where the vertical axis ends.")
_THRESHOLD = flags.DEFINE_float("threshold", None, "Of --histogram: count the clients below it.")
_ROUND = flags.DEFINE_integer("round", None, "Of --histogram: of which evaluation, not the last.")
_LOSS_SURFACE = flags.DEFINE_string("loss_surface", None, "A run's output directory.")
_CLIENT = flags.DEFINE_integer("client", None, "Of --loss_surface: whose loss and model.")
_SURFACE_POINTS = flags.DEFINE_integer("surface_points", 21, "Points a side of the plane, odd.")
_SURFACE_RADIUS = flags.DEFINE_float(
    "surface_radius", 1.0, "Where the plane ends; 1 is as far from the model as 0 is."
)
_SURFACE_EXAMPLES = flags.DEFINE_integer(
    "surface_examples", 1000, "Training examples of the client, at most; more are drawn from."
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    try:
        experiment.check_writable(_OUTPUT.value)
        if _HISTOGRAM.value is not None:
            print(_draw_histogram())
        elif _INFLUENCE.value is not None:
            reports.plot_influence(_INFLUENCE.value, _OUTPUT.value, _MATRIX.value)
        elif _MIXTURES.value is not None:
            clients = None if _CLIENTS.value is None else map(int, _CLIENTS.value)
            reports.plot_mixtures(_MIXTURES.value, _OUTPUT.value, clients=clients)
        elif _LOSS_SURFACE.value is not None:
            print(f"numbers: {_draw_loss_surface()}")
        else:
            _draw_curves()
    except experiment.USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _draw_curves():
    reports.plot_curves(
        _by_name(_RUNS.value),
        _COLUMN.value,
        _OUTPUT.value,
        exclude_clients=map(int, _EXCLUDE_CLIENTS.value),
        log_scale=_LOG_SCALE.value,
        top=_TOP.value,
    )


def _draw_histogram():
    return reports.plot_histograms(
        _by_name(_HISTOGRAM.value),
        _COLUMN.value,
        _OUTPUT.value,
        round_num=_ROUND.value,
        threshold=_THRESHOLD.value,
        exclude_clients=map(int, _EXCLUDE_CLIENTS.value),
    )


def _draw_loss_surface():
    runtime.set_graph_context()
    surfaces = reports.loss_surfaces_of_run(
        _LOSS_SURFACE.value,
        client_id=_CLIENT.value,
        points=_SURFACE_POINTS.value,
        radius=_SURFACE_RADIUS.value,
        max_examples=_SURFACE_EXAMPLES.value,
    )
    return reports.plot_loss_surfaces(surfaces, _OUTPUT.value)


def _by_name(runs):
    return dict(run.split(":", 1) for run in runs)


@flags.validator("histogram", "Each is NAME:DIR.")
@flags.validator("runs", "Each is NAME:DIR.")
def _are_named(runs):
    names = [run.partition(":")[0] for run in runs or ()]
    for name in names:
        if names.count(name) > 1:
            raise flags.ValidationError(f"{name!r} is the name of two runs; each needs its own.")
    return runs is None or (len(runs) > 0 and all(map(re.compile(".+:.+").match, runs)))


@flags.validator("output", "A picture ends in .png, .pdf or .svg.")
def _is_picture(path):
    return path is None or path.endswith((".png", ".pdf", ".svg"))


@flags.multi_flags_validator(["top", "threshold"], "Both are finite numbers.")
def _are_finite(values):
    return all(value is None or math.isfinite(value) for value in values.values())


@flags.multi_flags_validator(["exclude_clients", "clients"], "Ids are integers.")
def _are_ids(values):
    return all(id_.isdecimal() for ids in values.values() for id_ in ids or ())


if __name__ == "__main__":
    flags.mark_flag_as_required("output")
    flags.mark_flags_as_mutual_exclusive(
        ["runs", "histogram", "influence", "mixtures", "loss_surface"], required=True
    )
    app.run(main)

"""Pictures, tables and pages of what runs gave, finished or not.

    report.py SUBCOMMAND ARGUMENTS... --output=FILE [--FLAG=VALUE ...]

NAME:DIR is a run's output directory and the name that it is shown by; without NAME:, a run is named
after its folder. Several runs of one name differ in their seeds. COLUMN is one of
`clients/round_*.csv`, by default personalized/local_test/accuracy. Pictures end in .png, .pdf or
.svg.

The mean over clients of a quantity, over the rounds, with the deviation over seeds as a band:

    report.py curves NAME:DIR... --output=FILE [--column=COLUMN] [--exclude_clients=0,5]
        [--log_scale] [--top=3]

The same over the megabytes that a client has sent which takes part in every round, a line a variant
of a study; variants whose labels are "PANEL | LINE", such as method and compressor, have a panel a
method:

    report.py against_bytes STUDY_FILE DIR | DIR... | NAME:DIR... --output=FILE [--column=COLUMN]

The same after the last round over epsilon, a line a method with bars over seeds; what has no
privacy stands at the right. Labels are "METHOD | EPSILON":

    report.py against_epsilon STUDY_FILE DIR | DIR... | NAME:DIR... --output=FILE [--column=COLUMN]

How such a quantity is distributed over the clients, at the last evaluation or at that of a round; a
histogram a name. A table is printed: the mean, those of the lowest and the top 5 % of clients, and
the share of clients below a threshold. Clients without examples do not count:

    report.py histogram NAME:DIR... --output=FILE [--column=COLUMN] [--threshold=0.6] [--round=50]
        [--exclude_clients=0,5]

Who helps whom, for algorithms that learn it, such as PGFed; the matrices are those of
`snapshots/round_*.npz`:

    report.py influence DIR --output=FILE [--matrix=alpha]

What clients mix their models of, for algorithms such as pFedMB: the parts of each layer, over the
rounds; the clients are by default the first ones:

    report.py mixtures DIR --output=FILE [--clients=0,5,1,6]

The training loss of a client around the global model, if there is one, and around the client's own,
on a plane of two random directions, both normalised filter by filter; the models are those of the
last checkpoint, the client is by default the one with most training examples. The losses are also
written as numbers, beside the picture: FILE.npz with `axis`, `global` and `personalized`:

    report.py loss_surface DIR --output=FILE [--client=7] [--points=21] [--radius=1.0]
        [--examples=1000] [--trust_imports | --imports=MODULE,MODULE]

What the last rounds of a run did when, and what was done while the devices computed:

    report.py timeline DIR --output=FILE [--rounds=3]

A table of finished runs, of a study that may be going on: means and standard deviations over seeds
of some columns, the difference to the paper's number where a run's config has one, bytes, seconds;
with --against, a paired test of every variant against one, of the first column. DIR alone is a
study's directory:

    report.py table STUDY_FILE DIR | DIR... | NAME:DIR... [--format=latex] [--columns=COLUMN,COLUMN]
        [--against=LABEL]

There, COLUMN is a metric of `summary.json`, after the last round, or EVALUATION:METRIC of another
evaluation: best_on_validation, best_on_test (chosen on what it reports) or late_mean, as in
best_on_validation:personalized/local_test/accuracy.

One column of variants that differ in two ways, such as attack and aggregator, whose labels are
"ROW | COLUMN"; clients can be left out, all those that attack in a run included:

    report.py cross_table STUDY_FILE DIR | DIR... | NAME:DIR... [--format=latex] [--column=COLUMN]
        [--exclude_attackers] [--exclude_clients=0,5] [--each_run]

The numbers of the single clients as CSV, a line a client of a seed and a column a variant, for
statistics of one's own; runs of one seed have to have the same partition:

    report.py clients STUDY_FILE DIR | DIR... | NAME:DIR... [--column=COLUMN]

All of it on one page of HTML that needs no other file: the table, curves, who gains and who is hurt
against a variant of `local`, histograms, what it takes to reach an accuracy, and the settings:

    report.py page STUDY_FILE DIR | DIR... | NAME:DIR... --output=FILE.html
        [--columns=COLUMN,COLUMN] [--target=0.7] [--against=LABEL]
"""

import math
import os
import sys

from absl import app, flags

from tff_pfl import experiment, reports, runtime, studies
from tff_pfl.names import UnknownNameError
from tff_pfl.reports import PICTURES, CommandLineError, Subcommand
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()

_trusted_imports = experiment.define_import_flags()
_OUTPUT = flags.DEFINE_string("output", None, "The file that is written.")
_COLUMN = flags.DEFINE_string(
    "column", "personalized/local_test/accuracy", "Which quantity is shown, see above."
)
_EXCLUDE_CLIENTS = flags.DEFINE_list("exclude_clients", [], "Ids of clients that are left out.")
_EXCLUDE_ATTACKERS = flags.DEFINE_bool(
    "exclude_attackers", False, "cross_table: leave out the clients that attack."
)
_EACH_RUN = flags.DEFINE_bool(
    "each_run", False, "cross_table: print a line of CSV for each run, not the table."
)
_LOG_SCALE = flags.DEFINE_bool("log_scale", False, "curves: draw on a logarithmic scale.")
_TOP = flags.DEFINE_float("top", None, "curves: where the vertical axis ends.")
_THRESHOLD = flags.DEFINE_float("threshold", None, "histogram: count the clients below it.")
_ROUND = flags.DEFINE_integer("round", None, "histogram: of which evaluation, not the last.")
_MATRIX = flags.DEFINE_string("matrix", "alpha", "influence: which matrix is shown.")
_CLIENTS = flags.DEFINE_list("clients", None, "mixtures: ids of who is shown, in this order.")
_CLIENT = flags.DEFINE_integer("client", None, "loss_surface: whose loss and model.")
_POINTS = flags.DEFINE_integer("points", 21, "loss_surface: points a side of the plane, odd.")
_RADIUS = flags.DEFINE_float(
    "radius", 1.0, "loss_surface: where the plane ends; 1 is as far from the model as 0 is."
)
_EXAMPLES = flags.DEFINE_integer(
    "examples", 1000, "loss_surface: of the client's training examples at most; drawn of more."
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 3, "timeline: how many of the last rounds are shown.", lower_bound=1
)
_FORMAT = flags.DEFINE_enum(
    "format", "markdown", ["markdown", "latex"], "Of table and cross_table."
)
_COLUMNS = flags.DEFINE_list(
    "columns", None, "Of table and page: metrics of summary.json, see above."
)
_AGAINST = flags.DEFINE_string(
    "against", None, "Of table and page: whom others are tested against."
)
_TARGET = flags.DEFINE_float(
    "target", None, "page: the accuracy that is to be reached.", lower_bound=0, upper_bound=1
)


def main(argv):
    try:
        printed = reports.run_subcommand(argv, SUBCOMMANDS)
    except (
        *experiment.user_errors(),
        CommandLineError,
        UnknownNameError,
        studies.StudyError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if printed:
        _print(printed)
    return 0


def _print(text):
    """To a reader who may have enough before its end, as `head` has."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python's own flush at exit finds nobody there either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _curves(arguments):
    reports.plot_curves(
        reports.named_runs(arguments),
        _COLUMN.value,
        _OUTPUT.value,
        exclude_clients=map(int, _EXCLUDE_CLIENTS.value),
        log_scale=_LOG_SCALE.value,
        top=_TOP.value,
    )


def _against_bytes(arguments):
    comparison = studies.comparison_of(arguments)
    reports.plot_against_bytes(comparison, _COLUMN.value, _OUTPUT.value)


def _against_epsilon(arguments):
    comparison = studies.comparison_of(arguments)
    reports.plot_against_epsilon(comparison, _COLUMN.value, _OUTPUT.value)


def _histogram(arguments):
    return reports.plot_histograms(
        reports.named_runs(arguments),
        _COLUMN.value,
        _OUTPUT.value,
        round_num=_ROUND.value,
        threshold=_THRESHOLD.value,
        exclude_clients=map(int, _EXCLUDE_CLIENTS.value),
    )


def _influence(arguments):
    reports.plot_influence(*arguments, _OUTPUT.value, _MATRIX.value)


def _mixtures(arguments):
    clients = None if _CLIENTS.value is None else map(int, _CLIENTS.value)
    reports.plot_mixtures(*arguments, _OUTPUT.value, clients=clients)


def _loss_surface(arguments):
    announce_tensorflow()
    runtime.set_graph_context()
    surfaces = reports.loss_surfaces_of_run(
        *arguments,
        client_id=_CLIENT.value,
        points=_POINTS.value,
        radius=_RADIUS.value,
        max_examples=_EXAMPLES.value,
        trust_imports=_trusted_imports(),
    )
    return f"numbers: {reports.plot_loss_surfaces(surfaces, _OUTPUT.value)}"


def _timeline(arguments):
    reports.plot_timeline(*arguments, _OUTPUT.value, num_rounds=_ROUNDS.value)


def _table(arguments):
    comparison = studies.comparison_of(arguments)
    table = reports.results_table(comparison, _columns(comparison), _AGAINST.value)
    return _formatted(table)


def _cross_table(arguments):
    tabulate = reports.cross_values if _EACH_RUN.value else reports.cross_table
    made = tabulate(
        studies.comparison_of(arguments),
        _COLUMN.value,
        exclude_attackers=_EXCLUDE_ATTACKERS.value,
        exclude_clients=map(int, _EXCLUDE_CLIENTS.value),
    )
    return reports.to_csv(made, reports.RunValue._fields) if _EACH_RUN.value else _formatted(made)


def _client_values(arguments):
    values = reports.client_values(studies.comparison_of(arguments), _COLUMN.value)
    return reports.to_csv(values.rows, values.heads)


def _formatted(table):
    return {"markdown": reports.to_markdown, "latex": reports.to_latex}[_FORMAT.value](table)


def _page(arguments):
    comparison = studies.comparison_of(arguments)
    reports.write_page(
        comparison,
        _OUTPUT.value,
        columns=_columns(comparison),
        target=_TARGET.value,
        against=_AGAINST.value,
    )


def _columns(comparison):
    return _COLUMNS.value and reports.named_columns(comparison, _COLUMNS.value)


_COMPARED = "STUDY_FILE DIR | DIR... | NAME:DIR..."
SUBCOMMANDS = {
    "curves": Subcommand(
        _curves, "NAME:DIR...", ("column", "exclude_clients", "log_scale", "top"), PICTURES
    ),
    "against_bytes": Subcommand(_against_bytes, _COMPARED, ("column",), PICTURES),
    "against_epsilon": Subcommand(_against_epsilon, _COMPARED, ("column",), PICTURES),
    "histogram": Subcommand(
        _histogram, "NAME:DIR...", ("column", "threshold", "round", "exclude_clients"), PICTURES
    ),
    "influence": Subcommand(_influence, "DIR", ("matrix",), PICTURES),
    "mixtures": Subcommand(_mixtures, "DIR", ("clients",), PICTURES),
    "loss_surface": Subcommand(
        _loss_surface,
        "DIR",
        ("client", "points", "radius", "examples", "trust_imports", "imports"),
        PICTURES,
    ),
    "timeline": Subcommand(_timeline, "DIR", ("rounds",), PICTURES),
    "table": Subcommand(_table, _COMPARED, ("format", "columns", "against")),
    "cross_table": Subcommand(
        _cross_table,
        _COMPARED,
        ("format", "column", "exclude_attackers", "exclude_clients", "each_run"),
    ),
    "clients": Subcommand(_client_values, _COMPARED, ("column",)),
    "page": Subcommand(_page, _COMPARED, ("columns", "target", "against"), (".html",)),
}


@flags.multi_flags_validator(["top", "threshold", "target"], "They are finite numbers.")
def _are_finite(values):
    return all(value is None or math.isfinite(value) for value in values.values())


@flags.multi_flags_validator(["exclude_clients", "clients"], "Ids are integers.")
def _are_ids(values):
    return all(id_.isdecimal() for ids in values.values() for id_ in ids or ())


if __name__ == "__main__":
    app.run(main)

"""The subcommands of `programs/report.py`, with their arguments and output."""

import argparse
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from tff_pfl import analysis
from tff_pfl.analysis.tables import FORMATS

_RUNS = "the runs: a run's folder, NAME:DIR, a folder of runs, a study's folder, or STUDY_FILE DIR"


def _texts(text: str) -> list[str]:
    return list(filter(None, text.split(",")))


def share(text: str) -> float:
    """Parses a number from 0 to 1."""
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, found {text}")
    return float(text)


def _file_type(endings: Sequence[str]) -> Callable[[str], str]:
    def checked(text):
        if not text.endswith(tuple(endings)):
            raise argparse.ArgumentTypeError(f"must end in {' or '.join(endings)}, found {text}")
        return text

    return checked


OPTIONS: dict[str, dict[str, Any]] = {
    "against": dict(
        metavar="NAME", help="compare every other name with this one, client by client"
    ),
    "column": dict(
        help="the metric, MODEL/POOL/QUANTITY, or QUANTITY of the clients' own models on their "
        "test examples; by default the first metric of the task, such as accuracy"
    ),
    "columns": dict(
        type=_texts,
        metavar="COLUMN,COLUMN",
        help="metrics of summary.json, such as global/local_test/accuracy_worst_5_percent, or "
        "accuracy of the clients' own models on their test examples; write "
        "EVALUATION:METRIC for another evaluation than the last: best_on_validation, best_on_test "
        "(chosen on the examples that it reports) or late_mean",
    ),
    "exclude_clients": dict(
        type=_texts, default=[], metavar="0,5", help="names or ids of clients to leave out"
    ),
    "format": dict(choices=list(FORMATS), default="markdown"),
    "log_scale": dict(action="store_true", help="use a logarithmic scale"),
    "target": dict(type=share, help="the accuracy to reach, from 0 to 1"),
    "threshold": dict(type=float, help="report the share of clients below this value"),
}


SUBCOMMANDS: dict[str, Callable[..., str | None]] = {}
"""Functions by the name of their subcommand, which prints the text that they return."""


def subcommand(function):
    """Adds a function to `SUBCOMMANDS`; `runs`, `output` and `OPTIONS` are its arguments."""
    SUBCOMMANDS[function.__name__] = function
    return function


def runs_of(arguments: Sequence[str]) -> analysis.Runs:
    """Reads the runs of a command line: folders, or the file and the folder of a study."""
    if len(arguments) == 2 and re.search(r"\.py(:|$)", arguments[0]):
        from tff_pfl.studies.study import load_study

        return analysis.read(arguments[1], load_study(arguments[0]).record())
    return analysis.read(arguments)


@subcommand
def curves(runs, output, column, exclude_clients, log_scale):
    """Draws the mean over clients against the round; a band shows the deviation over seeds."""
    frame = runs.clients("all") if exclude_clients else runs.metrics
    figure = analysis.plot_curves(
        frame, column, exclude_clients=exclude_clients, log_scale=log_scale
    )
    analysis.save(figure, output)


@subcommand
def against_bytes(runs, output, column):
    """Draws the mean over clients against the megabytes sent by a client that is in every round.

    Names "PANEL | LINE", such as "METHOD | COMPRESSOR", draw a panel for each method.
    """
    analysis.save(analysis.plot_against_bytes(runs, column), output)


@subcommand
def against_epsilon(runs, output, column):
    """Draws the last value against epsilon, a line per method; names are "METHOD | EPSILON"."""
    analysis.save(analysis.plot_against_epsilon(runs, column), output)


@subcommand
def histogram(runs, output, column, threshold, exclude_clients):
    """Draws a histogram of a quantity over clients, and prints its mean and tails."""
    options = {"threshold": threshold, "exclude_clients": exclude_clients}
    analysis.save(analysis.plot_histograms(runs, column, **options), output)
    return analysis.to_markdown(analysis.distribution_table(runs, column, **options))


@subcommand
def table(runs, format, columns, against):
    """Prints means and deviations over seeds, bytes and seconds.

    With --against, adds a paired test of every other name on the first column.
    """
    return FORMATS[format](analysis.results_table(runs, columns, against))


@subcommand
def clients(runs, column):
    """Prints CSV with a line for each client of each seed and a column for each name.

    The runs of a seed must have the same partition.
    """
    values = analysis.client_values(runs, column).reset_index()
    return values.to_csv(index=False).rstrip("\n")


@subcommand
def page(runs, output, columns, target, against):
    """Writes tables and figures to one self-contained HTML page."""
    analysis.write_page(runs, output, columns=columns, target=target, against=against)


def parse(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Parses a command line; ends the process if it is wrong or asks for help.

    Args:
        argv: The arguments, without the name of the program.
        description: The description of the program.

    Returns:
        `subcommand`, and the arguments of its function in `SUBCOMMANDS`.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, run in SUBCOMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=(run.__doc__ or "").partition("\n")[0],
            description=run.__doc__,
            allow_abbrev=False,
        )
        for argument in inspect.signature(run).parameters:
            if argument == "runs":
                sub.add_argument("runs", nargs="+", metavar="DIR", help=_RUNS)
            elif argument == "output":
                endings = (".html",) if name == "page" else (".png", ".pdf", ".svg")
                sub.add_argument(
                    "--output",
                    type=_file_type(endings),
                    default=f"{name}{endings[0]}",
                    help="the file to write; by default %(default)s",
                )
            else:
                sub.add_argument(f"--{argument}", **OPTIONS[argument])
    arguments, runs = parser.parse_known_args(argv)  # runs may follow a flag
    if flags := [text for text in runs if text.startswith("-")]:
        subparsers.choices[arguments.subcommand].error(f"unknown arguments: {' '.join(flags)}")
    arguments.runs += runs
    return arguments

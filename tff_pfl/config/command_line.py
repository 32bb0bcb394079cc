"""The subcommands of `programs/report.py`, with their arguments and output."""

import argparse
import inspect
import os
import re
from collections.abc import Callable, Sequence

from tff_pfl import analysis
from tff_pfl.analysis.tables import FORMATS
from tff_pfl.runtime.startup import announce_tensorflow

_RUNS = "the runs: a run's folder, NAME:DIR, a folder of runs, a study's folder, or STUDY_FILE DIR"


def _texts(text: str) -> list[str]:
    return list(filter(None, text.split(",")))


def whole_numbers(text: str) -> list[int]:
    """Parses whole numbers separated by commas."""
    return list(map(int, _texts(text)))


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


OPTIONS = {
    "against": dict(
        metavar="NAME", help="compare every other name with this one, client by client"
    ),
    "client": dict(
        help="the client's name or id; by default the client with the most training examples"
    ),
    "clients": dict(
        type=whole_numbers, metavar="0,5", help="ids of the clients to show, in this order"
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
    "examples": dict(
        type=int, default=1000, help="the most training examples; a larger set is sampled"
    ),
    "exclude_clients": dict(
        type=_texts, default=[], metavar="0,5", help="names or ids of clients to leave out"
    ),
    "format": dict(choices=list(FORMATS), default="markdown"),
    "imports": dict(
        type=_texts,
        default=[],
        metavar="MODULE,MODULE",
        help="modules of the run's config to import from the working directory",
    ),
    "log_scale": dict(action="store_true", help="use a logarithmic scale"),
    "matrix": dict(default="alpha", help="the matrix's name in snapshots/round_*.npz"),
    "points": dict(type=int, default=21, help="grid points along each side, an odd number"),
    "radius": dict(
        type=float, default=1.0, help="half a side of the plane; 1 is the norm of the weights"
    ),
    "round": dict(type=int, help="use the evaluation after this round; by default the last"),
    "rounds": dict(type=int, default=3, help="how many of the last rounds to draw"),
    "target": dict(type=share, help="the accuracy to reach, from 0 to 1"),
    "threshold": dict(type=float, help="report the share of clients below this value"),
    "trust_imports": dict(
        action="store_true",
        help="import the modules that the run's config names, from the folders that it names; "
        "only for runs whose author you trust, because this executes their code",
    ),
}


SUBCOMMANDS: dict[str, Callable[..., str | None]] = {}
"""Functions by the name of their subcommand, which prints the text that they return."""


def subcommand(function):
    """Adds a function to `SUBCOMMANDS`; `runs`, `run`, `output` and `OPTIONS` are its arguments."""
    SUBCOMMANDS[function.__name__] = function
    return function


def runs_of(arguments: Sequence[str]) -> analysis.Runs:
    """Reads the runs of a command line: folders, or the file and the folder of a study."""
    if len(arguments) == 2 and re.search(r"\.py(:|$)", arguments[0]):
        from tff_pfl.config.study import load_study

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
def histogram(runs, output, column, threshold, round, exclude_clients):
    """Draws a histogram of a quantity over clients, and prints its mean and tails."""
    shown = runs, column, "last" if round is None else round
    options = {"threshold": threshold, "exclude_clients": exclude_clients}
    analysis.save(analysis.plot_histograms(*shown, **options), output)
    return analysis.to_markdown(analysis.distribution_table(*shown, **options))


@subcommand
def influence(run, output, matrix):
    """Draws which clients help which, for algorithms that learn it, such as PGFed."""
    analysis.save(analysis.plot_influence(run, matrix), output)


@subcommand
def mixtures(run, output, clients):
    """Draws how clients mix the parts of their models, for algorithms such as pFedMB."""
    analysis.save(analysis.plot_mixtures(run, clients=clients), output)


@subcommand
def loss_surface(run, output, client, points, radius, examples, trust_imports, imports):
    """Draws the training loss of a client around the global model and around its own model.

    Two random directions, normalised filter by filter, span the plane. The models are from the last
    checkpoint. The losses are written beside the figure, as .npz.
    """
    announce_tensorflow()
    found = analysis.loss_surfaces_of_run(
        run,
        client_id=client,
        points=points,
        radius=radius,
        max_examples=examples,
        trust_imports=trust_imports or imports,
    )
    numbers = f"{os.path.splitext(output)[0]}.npz"
    analysis.save_loss_surfaces(found, numbers)
    analysis.save(analysis.plot_loss_surfaces(found), output)
    return f"numbers: {numbers}"


@subcommand
def timeline(run, output, rounds):
    """Draws the timeline of the last rounds, including work done while the devices computed."""
    analysis.save(analysis.plot_timeline(analysis.read(run).timings, rounds=rounds), output)


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
    return _csv(analysis.client_values(runs, column).reset_index())


@subcommand
def page(runs, output, columns, target, against):
    """Writes tables and figures to one self-contained HTML page."""
    analysis.write_page(runs, output, columns=columns, target=target, against=against)


def _csv(frame):
    return frame.to_csv(index=False).rstrip("\n")


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
            name, help=run.__doc__.splitlines()[0], description=run.__doc__, allow_abbrev=False
        )
        for argument in inspect.signature(run).parameters:
            if argument == "runs":
                sub.add_argument("runs", nargs="+", metavar="DIR", help=_RUNS)
            elif argument == "run":
                sub.add_argument("run", metavar="DIR", help="the run's output directory")
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
    arguments, rest = parser.parse_known_args(argv)
    if rest and ("runs" not in arguments or any(text.startswith("-") for text in rest)):
        subparsers.choices[arguments.subcommand].error(f"unknown arguments: {' '.join(rest)}")
    if rest:  # runs that follow a flag
        arguments.runs += rest
    return arguments

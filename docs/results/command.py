"""Draws a picture of one run from a command line: `python -m docs.results.MODULE RUN OUTPUT`."""

import argparse
import inspect
import sys
from collections.abc import Callable

from tff_pfl import config as configs
from tff_pfl.analysis import figures
from tff_pfl.runtime.startup import prepare_process


def main(plot: Callable) -> None:
    """Draws a run's picture; the arguments of `plot` after the run are flags, with its defaults.

    Args:
        plot: Takes the run's folder and returns the figure.
    """
    prepare_process()
    parser = argparse.ArgumentParser(description=plot.__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("output", help="the file to write: .png, .pdf or .svg")
    _, *options = inspect.signature(plot).parameters.values()
    for option in options:
        parser.add_argument(f"--{option.name}", type=type(option.default), default=option.default)
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    try:
        figures.save(plot(**arguments), output)
    except (*configs.user_errors(), ValueError) as error:
        sys.exit(f"error: {error}")

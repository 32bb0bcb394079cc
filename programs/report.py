"""Makes figures, tables and pages of runs and studies, finished or not.

    report.py SUBCOMMAND DIR... [--FLAG=VALUE ...]      report.py SUBCOMMAND --help

A run has the name of its folder, or NAME if it is given as NAME:DIR. Runs with the same name must
differ only in their seeds. Figures are .png, .pdf or .svg files.
"""

import os
import sys

from tff_pfl import config as configs
from tff_pfl import experiment
from tff_pfl.config import command_line
from tff_pfl.output.files import with_home
from tff_pfl.runtime.startup import prepare_process

prepare_process()


def main(argv):
    arguments = vars(command_line.parse(with_home(argv), __doc__))
    run = command_line.SUBCOMMANDS[arguments.pop("subcommand")]
    try:
        if "output" in arguments:
            experiment.check_writable(arguments["output"])
        if "runs" in arguments:
            arguments["runs"] = command_line.runs_of(arguments["runs"])
        printed = run(**arguments)
    except (*configs.user_errors(), ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if "output" in arguments and not any(text.startswith("--output") for text in argv):
        printed = "\n".join(filter(None, [printed, f"written: {arguments['output']}"]))
    if printed:
        _print(printed)
    return 0


def _print(text):
    """Prints text to a reader that may close the pipe before the end, such as `head`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes stdout again at exit, which would fail in the same way.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

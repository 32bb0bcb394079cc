"""Prints honest clients' accuracies under attacks: `python -m docs.results.honest STUDY DIR`.

Labels of runs are "METHOD, ATTACK | AGGREGATOR". With `--each_run`, prints a line for each run.
"""

import argparse

import pandas as pd

from docs.results.data import markdown, named, over_seeds
from tff_pfl import analysis


def accuracies(runs) -> pd.DataFrame:
    """Returns the mean accuracy over honest clients after the last round.

    Args:
        runs: See `tff_pfl.analysis.read`.

    Returns:
        Columns `case`, the part of a label before the "|"; `option`, the part after it; `seed`;
        and `value`.
    """
    runs = analysis.read(runs).finished
    clients = analysis.select(runs.clients(), "accuracy")
    attackers = {(str(path), client) for _, path in runs for client in runs.files(path).attackers}
    keys = clients[["run", "client_id"]].itertuples(index=False, name=None)
    honest = clients[[key not in attackers for key in keys]]
    means = honest.groupby(["label", "seed"], sort=False)["value"].mean().reset_index()
    parts = means["label"].str.extract(r"(?P<case>.*) \| (?P<option>.*)")
    return parts.join(means[["seed", "value"]])


def main():
    """Prints a table, or the numbers of which it is made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="a study's file and its folder, or runs")
    parser.add_argument("--each_run", action="store_true")
    arguments = parser.parse_args()
    found = accuracies(arguments.runs)
    if arguments.each_run:
        print(found.to_csv(index=False), end="")
    else:
        print(markdown(named(over_seeds(found, "option"), "attack")), end="")


if __name__ == "__main__":
    main()

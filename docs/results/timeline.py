"""Draws where the time of rounds goes: `python -m docs.results.timeline RUN OUTPUT`."""

import pandas as pd

from docs.results import command
from tff_pfl.analysis import figures
from tff_pfl.experiment import RunFiles


@figures.styled
def draw(run: str, rounds: int = 3):
    """Draws the last rounds of a run, with a lane for each part of a round.

    Args:
        run: The run's folder.
        rounds: The number of rounds to show.
    """
    seconds = pd.DataFrame(RunFiles(run).timings).tail(rounds).fillna(0)
    ends = (seconds["round_seconds"] + seconds["evaluation_seconds"]).cumsum()
    starts = ends.shift(fill_value=0)
    computing, evaluating = starts + seconds["select_seconds"], starts + seconds["round_seconds"]
    lanes = {
        "select the cohort": ("select_seconds", starts),
        "compute the round": ("compute_seconds", computing),
        "write the previous round,\nin the background": ("write_seconds", computing),
        "update client states": ("update_seconds", evaluating - seconds["update_seconds"]),
        "evaluate": ("evaluation_seconds", evaluating),
    }
    figure = figures.new_figure(width=8.0, height=3.1)
    axes = figure.subplots()
    for lane, (part, start) in lanes.items():
        color = figures.COLORS["background" in lane]
        style = {"color": color, "edgecolor": color}  # the edge keeps very short spans visible
        axes.barh([lane] * len(start), 1000 * seconds[part], left=1000 * start, **style)
    for end in ends:
        axes.axvline(1000 * end, color="black", linestyle=":", linewidth=1.2)
    first, last = seconds["round"].iloc[[0, -1]]
    axes.set(title=f"rounds {first:.0f} to {last:.0f}", xlabel="milliseconds")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


if __name__ == "__main__":
    command.main(draw)

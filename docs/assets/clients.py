"""Draws the picture of the README from the runs of its code.

.venv/bin/python -m docs.assets.clients runs/compare
"""

import pathlib
import sys

import matplotlib.pyplot as plt
import numpy as np

import tff_pfl

PICTURE = pathlib.Path(__file__).with_suffix(".png")
# Colours that are legible on white and on black.
BETTER, EQUAL, WORSE, INK = "#3b8ac4", "#8a8a8a", "#dd7a2f", "#7d7d7d"
WIDTH = 1.0  # of a column of points, in percentage points


def draw(folder):
    """Draws each client's gain over Local in accuracy, a point for each client and seed."""
    values = 100 * tff_pfl.Comparison(folder).clients()
    methods = [label for label in values if label != "Local"]
    figure, every_axes = plt.subplots(
        len(methods), figsize=(7, 1.35 * len(methods)), sharex=True, layout="constrained"
    )
    for axes, label in zip(every_axes, methods, strict=True):
        gains = np.round(values[label] - values["Local"], 6).to_numpy()
        columns = np.round(gains / WIDTH).astype(int)
        heights = [np.sum(columns[:place] == column) for place, column in enumerate(columns)]
        colors = np.select([gains > 0, gains < 0], [BETTER, WORSE], EQUAL)
        axes.axvline(0, color=INK, linewidth=0.8, zorder=0)
        axes.scatter(WIDTH * columns, heights, s=14, c=colors, linewidths=0)
        counts = [np.sum(gains > 0), np.sum(gains == 0), np.sum(gains < 0)]
        words = zip(("better", "equal", "worse"), (BETTER, EQUAL, WORSE), counts, strict=True)
        axes.set_title(label, loc="left", color=INK, fontsize=11)
        for place, (word, color, count) in enumerate(words):
            axes.text(0.69 + 0.11 * place, 1.06, f"{count} {word}", color=color, fontsize=9,
                      transform=axes.transAxes)  # fmt: skip
        axes.set(ylim=(-1, max(heights) + 1.5), yticks=[])
        axes.tick_params(colors=INK)
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.spines["bottom"].set_color(INK)
    every_axes[-1].set_xlabel("accuracy over that of training alone, percentage points", color=INK)
    figure.savefig(PICTURE, dpi=110, transparent=True)


if __name__ == "__main__":
    draw(sys.argv[1])

"""Draws the picture of the README: runs its code, and compares each client under two methods.

.venv/bin/python -m docs.assets.clients runs/compare
"""

import pathlib
import sys

import matplotlib.pyplot as plt

import tff_pfl

PICTURE = pathlib.Path(__file__).with_suffix(".png")


def draw(folder):
    """Draws the accuracy of each client under Ditto against that under Local."""
    clients = tff_pfl.Comparison(folder).clients()
    is_hurt = clients["Ditto"] < clients["Local"]
    figure, axes = plt.subplots(figsize=(4.2, 4), layout="constrained")
    axes.plot([0.7, 1], [0.7, 1], color="0.6", zorder=0)
    for label, marker, shown in (("as good or better", "o", ~is_hurt), ("worse", "v", is_hurt)):
        found = clients[shown]
        label = f"{label}: {len(found)} of {len(clients)}"
        axes.scatter(found["Local"], found["Ditto"], marker=marker, alpha=0.6, label=label)
    axes.set(xlabel="accuracy of a client's model alone (Local)", aspect="equal")
    axes.set(ylabel="accuracy of its own model under Ditto")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    draw(sys.argv[1])

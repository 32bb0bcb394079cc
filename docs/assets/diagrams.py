"""Draws diagrams for the guides.

.venv/bin/python -m docs.assets.diagrams
"""

import pathlib

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FOLDER = pathlib.Path(__file__).parent
SHARED, OWN, GREY, INK = "#3b6fb5", "#c8651b", "#8a8a8a", "#303030"


def canvas(width, height):
    """Returns a figure, and axes on which a unit is an inch."""
    figure, axes = plt.subplots(figsize=(width, height))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def box(axes, x, y, width, height, text, color, **font):
    """Draws a box with a text in it; `x` and `y` are its lower left corner."""
    style = {"facecolor": "white", "edgecolor": color, "linewidth": 1.5}
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            **style,
        )
    )
    axes.text(x + width / 2, y + height / 2, text, color=color, ha="center", va="center", **font)


def arrow(axes, start, end, text="", color=INK):
    """Draws an arrow with a text above its middle."""
    style = {"arrowstyle": "-|>", "mutation_scale": 14, "linewidth": 1.5}
    axes.add_patch(FancyArrowPatch(start, end, color=color, shrinkA=0, shrinkB=0, **style))
    middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
    axes.text(middle[0], middle[1] + 0.12, text, color=color, ha="center", va="center")


def draw_metric():
    """Draws the four parts of a metric's name, with a question under each."""
    figure, axes = canvas(8.2, 1.25)
    x = 0.15
    for text, question, width, color in (
        ("personalized", "which model?", 1.75, OWN),
        ("local_test", "on what?", 1.6, SHARED),
        ("accuracy", "which quantity?", 1.6, INK),
        ("mean", "over clients?", 1.3, GREY),
    ):
        box(axes, x, 0.6, width, 0.45, text, color, family="monospace", size=12)
        axes.text(x + width / 2, 0.3, question, color=color, ha="center", va="center")
        x += width
        if text != "mean":
            mark = "_" if text == "accuracy" else "/"
            axes.text(x + 0.25, 0.825, mark, size=14, family="monospace", ha="center", va="center")
        x += 0.5
    return figure


def draw_round():
    """Draws what is sent in a round of the averaging template, and what stays with a client."""
    figure, axes = canvas(8.2, 3.1)
    box(axes, 0.2, 0.15, 2.1, 2.8, "server\n\nshared weights\n+ mean of uploads", SHARED)
    for place, y in enumerate((2.15, 1.15, 0.15)):
        box(axes, 5.6, y, 2.4, 0.8, f"client {place}\nexamples, state", OWN)
        first = place == 0
        arrow(axes, (2.4, y + 0.55), (5.5, y + 0.55), "message: weights" * first, SHARED)
        arrow(axes, (5.5, y + 0.2), (2.4, y + 0.2), "upload: their change" * first, OWN)
    return figure


def draw_cohort():
    """Draws how a cohort becomes those who report."""
    figure, axes = canvas(8.2, 2.2)
    columns = (
        ("clients", 0.9, range(12), GREY),
        ("available", 2.9, (0, 1, 3, 4, 6, 8, 9, 10), GREY),
        ("cohort", 4.9, (0, 3, 4, 8, 10), SHARED),
        ("report", 6.9, (0, 4, 8), OWN),
    )
    for title, x, members, color in columns:
        for i in range(12):
            place = (x + 0.32 * (i % 4) - 0.48, 1.15 - 0.32 * (i // 4))
            shown = color if i in members else "#e3e3e3"
            axes.add_patch(plt.Circle(place, 0.11, color=shown, linewidth=0))
        axes.text(x, 1.65, title, color=INK, ha="center", va="center")
    for x, text in (
        (1.9, "some are\nabsent"),
        (3.9, "the server\nselects"),
        (5.9, "drop out,\nor are late"),
    ):
        arrow(axes, (x - 0.24, 0.83), (x + 0.24, 0.83))
        axes.text(x, 0.2, text, color=INK, ha="center", va="center", size=9)
    return figure


DRAWN = {"metric": draw_metric, "round": draw_round, "cohort": draw_cohort}

if __name__ == "__main__":
    for name, draw in DRAWN.items():
        draw().savefig(FOLDER / f"{name}.png", dpi=140)

"""Draws the picture of the guide to devices: who sends what in a round.

.venv/bin/python -m docs.assets.devices
"""

import pathlib

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

PICTURE = pathlib.Path(__file__).with_suffix(".png")
WIDTH, HEIGHT = 10, 5.8  # inches, which are also the units of all places
INK, EDGE = "#263238", "#546e7a"
MESSAGE, OWN, UPLOAD = "#1f6fb2", "#7b4ea3", "#c0500c"
SERVER, DEVICE, DATA, STEP = "#e8f1f8", "#edf5ea", "#fff3c9", "#ffffff"
TO_DEVICE, TO_SERVER = (2.98, 6.62), (6.62, 2.98)


class Drawing:
    """A white picture with boxes, words and arrows."""

    def __init__(self):
        self._figure = plt.figure(figsize=(WIDTH, HEIGHT), facecolor="white", dpi=110)
        self._axes = self._figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT))
        self._axes.axis("off")

    def write(self, x, y, words, *, size=12, color=INK, **style):
        self._axes.text(x, y, words, fontsize=size, color=color, va="center", **style)

    def box(self, left, bottom, width, height, fill):
        shape = f"round,pad=0,rounding_size={min(0.14, height / 4)}"
        box = FancyBboxPatch((left, bottom), width, height, shape, fc=fill, ec=EDGE, lw=1.1)
        self._axes.add_patch(box)

    def data(self, left, y, width, words):
        """Draws data that are kept."""
        self.box(left, y - 0.19, width, 0.38, DATA)
        self.write(left + width / 2, y - 0.01, words, ha="center")

    def step(self, left, y, width, words):
        """Draws a step, by the name of its signature."""
        self.box(left, y - 0.19, width, 0.38, STEP)
        self.write(left + width / 2, y - 0.01, words, ha="center", family="monospace")

    def arrow(self, *places, color=EDGE, dashed=False):
        """Draws an arrow along places, with a head that is not dashed."""
        (x0, y0), (x, y) = places[-2:]
        length = max(abs(x - x0), abs(y - y0))  # lines are horizontal or vertical
        neck = (x - 0.12 * (x - x0) / length, y - 0.12 * (y - y0) / length)
        dashes = {"linestyle": (0, (4, 2))} if dashed else {}
        self._axes.plot(*zip(*places[:-1], neck, strict=True), color=color, lw=1.8, **dashes)
        head = {"arrowstyle": "-|>,head_length=7,head_width=3.5", "shrinkA": 0, "shrinkB": 0}
        self._axes.add_patch(FancyArrowPatch(neck, (x, y), color=color, lw=0.5, **head))

    def sent(self, ends, y, words, color, *, dashed=False):
        """Draws what is sent between the server and a device."""
        self.arrow(*((x, y) for x in ends), color=color, dashed=dashed)
        self.write(sum(ends) / 2, y + 0.13, words, color=color, ha="center")

    def save(self):
        """Writes the picture with few colours, as a small file."""
        self._figure.canvas.draw()
        pixels = Image.fromarray(np.asarray(self._figure.canvas.buffer_rgba())[..., :3])
        pixels.quantize(64, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


def draw_server(drawing):
    """Draws the server, with its steps before and after the work of devices."""
    drawing.box(0.15, 0.85, 2.75, 4.8, SERVER)
    drawing.write(1.525, 5.35, "server", size=14, weight="bold", ha="center")
    drawing.data(0.9, 4.8, 1.6, "state")
    drawing.step(0.9, 4.05, 1.6, "message")
    drawing.step(0.9, 3.55, 1.6, "select")
    drawing.step(0.9, 2.2, 1.6, "accumulate")
    drawing.step(0.9, 1.35, 1.6, "update")
    drawing.arrow((1.7, 4.58), (1.7, 4.27))
    drawing.arrow((1.7, 1.98), (1.7, 1.57))
    drawing.arrow((0.88, 1.35), (0.5, 1.35), (0.5, 4.8), (0.87, 4.8))


def draw_device(drawing, number, top, message, own, upload):
    """Draws a device, and what it receives and sends."""
    drawing.box(6.7, top - 1.5, 3.15, 1.5, DEVICE)
    drawing.write(6.9, top - 0.3, f"device {number}", size=14, weight="bold")
    drawing.data(6.9, top - 0.75, 1.1, "examples")
    drawing.data(8.1, top - 0.75, 1.55, "state")
    drawing.step(6.9, top - 1.22, 1.1, "work")
    drawing.step(8.1, top - 1.22, 1.55, "personalize")
    drawing.sent(TO_DEVICE, top - 0.36, message, MESSAGE)
    drawing.sent(TO_DEVICE, top - 0.79, own, OWN, dashed=True)
    drawing.sent(TO_SERVER, top - 1.22, upload, UPLOAD)


def draw():
    """Draws the picture and writes it."""
    drawing = Drawing()
    draw_server(drawing)
    draw_device(drawing, 0, 5.65, "message, to all", "own, for one client (optional)", "upload")
    draw_device(drawing, 1, 4.0, "message", "own", "upload")
    draw_device(drawing, 2, 2.35, "message", "own", "upload")
    drawing.write(1.525, 0.43, "All uploads together\nupdate the state.", ha="center")
    drawing.write(8.275, 0.43, "Examples, state and the\npersonal model stay here.", ha="center")
    drawing.save()


if __name__ == "__main__":
    draw()

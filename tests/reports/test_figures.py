"""The style of pictures."""

import dataclasses
import itertools

import numpy as np
import pytest
from matplotlib.text import Text

from tests.reports.hand_written import write_run
from tff_pfl.evaluation import MetricName
from tff_pfl.reports import (
    compared,
    figures,
    plot_against_bytes,
    plot_against_epsilon,
    plot_curves,
    plot_histograms,
    results_table,
    to_markdown,
    write_page,
)
from tff_pfl.reports.against_local import against_local, figure_against_local

ACCURACY = "personalized/local_test/accuracy"

# Protanopia and deuteranopia of linear RGB, at full strength: Machado, Oliveira, Fernandes, 2009.
_SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def test_no_two_of_many_series_look_the_same():
    assert len({figures.series(i) for i in range(252)}) == 252
    first = [figures.series(i) for i in range(7)]
    assert len({style.color for style in first}) == len({style.marker for style in first}) == 7


@pytest.mark.parametrize("sight", _SIGHTS)
def test_colours_are_told_apart(sight):
    seen = [np.dot(_SIGHTS[sight], linear(color)) for color in figures.COLORS]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > 0.1


def test_colours_are_seen_on_white():
    for color in figures.COLORS:
        luminance = np.dot([0.2126, 0.7152, 0.0722], linear(color))
        assert 1.05 / (luminance + 0.05) > 2.0


def linear(color):
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


@figures.styled
def picture(labels):
    figure = figures.new_figure()
    axes = figure.subplots()
    for i, label in enumerate(labels):
        axes.plot([0, 1], [i, 1], label=label, **figures.series(i)._asdict())
    figures.legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def test_the_same_picture_is_the_same_file():
    drawn = figures.styled(figures.as_svg)
    assert drawn(picture(["a", "b"])) == drawn(picture(["a", "b"]))


@pytest.mark.parametrize(
    "labels", [["a"], [f"series {i}" for i in range(30)], ["a very long label " * 4] * 2]
)
def test_the_legend_is_within_the_picture_and_above_the_axes(labels):
    figure = picture(labels)
    figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert legend.y0 >= axes.y1 and legend.y1 <= figure.bbox.y1 + 1
    assert legend.x0 >= -1 and legend.x1 <= figure.bbox.x1 + 1
    assert axes.height > 2.4 * figure.dpi


def test_nothing_of_the_style_stays():
    import matplotlib

    before = dict(matplotlib.rcParams)
    picture(["a"])
    assert dict(matplotlib.rcParams) == before


NAMES = ["a$x^{$", "$x^2$", "_b", r"c\$d", "=e"]


def draw_curves(comparison, path):
    plot_curves(runs_of(comparison), ACCURACY, path, log_scale=True)


def draw_histograms(comparison, path):
    plot_histograms(runs_of(comparison), ACCURACY, path)


def draw_in_panels(comparison, path):
    results = {f"{label} | {label}": of for label, of in comparison.results.items()}
    comparison = dataclasses.replace(comparison, results=results)
    plot_against_bytes(comparison, ACCURACY, path)


def draw_gains(comparison, path):
    name = MetricName.parse(f"{ACCURACY}_mean")
    figures.save(figure_against_local(against_local(comparison, name)), path)


def runs_of(comparison):
    return {label: [of.path for of in results] for label, results in comparison.results.items()}


@pytest.mark.parametrize(
    "draw",
    [
        draw_curves,
        draw_histograms,
        draw_in_panels,
        draw_gains,
        lambda comparison, path: plot_against_bytes(comparison, ACCURACY, path),
        lambda comparison, path: plot_against_epsilon(comparison, ACCURACY, path),
    ],
)
def test_names_are_text(tmp_path, monkeypatch, draw):
    shown, save = set(), figures.save

    def recorded(figure, path):
        save(figure, path)
        shown.update(text.get_text().split(",")[0] for text in figure.findobj(Text))
        assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in str(text))

    monkeypatch.setattr(figures, "save", recorded)
    runs = {"local": [write_run(tmp_path / "local", [0.1, 0.2], algorithm="local")]}
    for i, name in enumerate(NAMES):
        runs[name] = [write_run(tmp_path / str(i), [0.5, 0.1 * i])]
    draw(compared("Names", runs), tmp_path / "picture.svg")
    assert {text.partition("\n")[0] for text in shown} >= set(NAMES)


def test_names_are_text_on_a_page_and_in_tables(tmp_path):
    runs = {name: [write_run(tmp_path / str(i), [0.5])] for i, name in enumerate(NAMES)}
    comparison = compared(NAMES[0], runs)
    write_page(comparison, tmp_path / "page.html")
    assert all(name in (tmp_path / "page.html").read_text() for name in NAMES)
    assert r"| a\$x^{\$ | " in to_markdown(results_table(comparison))


def test_logarithmic_axes_have_plain_numbers():
    figure = figures.styled(figures.new_figure)()
    axes = figure.subplots()
    axes.plot([1, 2], [1e-2, 1e3])
    figures.set_log_scale(axes, "y")
    figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[1:-1] == ["0.01", "0.1", "1", "10", "100", "1000"]

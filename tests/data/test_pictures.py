"""Tests that plots of partitions are drawn and show the data."""

import numpy as np
import pytest
from matplotlib import axes, image

from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.data.pictures import plot_partition


def dataset(num_clients, num_classes=3):
    n = num_clients * 4
    rows = tuple(np.split(np.arange(n), num_clients))
    none = (np.empty(0, np.int64),) * num_clients
    y = np.sort(np.arange(n) % num_classes)
    return FederatedDataset(np.zeros((n, 1)), y, num_classes, Partition(rows, none, none), "toy")


@pytest.fixture
def drawn(monkeypatch):
    """The arguments that Matplotlib's scatter and imshow are called with."""
    calls = {}
    for name in ("scatter", "imshow"):
        original = getattr(axes.Axes, name)

        def record(self, *args, _name=name, _original=original, **kwargs):
            calls[_name] = args
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(axes.Axes, name, record)
    return calls


@pytest.mark.thorough
@pytest.mark.parametrize("num_clients", [1, 10])
def test_circles_show_the_counts(tmp_path, drawn, num_clients):
    data = dataset(num_clients)
    plot_partition(data, tmp_path / "p.png")
    assert image.imread(tmp_path / "p.png").std() > 0.05
    client, label, area = drawn["scatter"]
    counts = data.class_counts()
    np.testing.assert_array_equal(np.argwhere(counts), np.stack([client, label], axis=1))
    if num_clients == 10:  # areas are proportional, since all are above the smallest size
        np.testing.assert_allclose(area / area.max(), counts[client, label] / counts.max())
    assert "imshow" not in drawn


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("num_clients", "num_classes", "a_column"), [(101, 3, 1), (30, 40, 1), (2100, 3, 2)]
)
def test_heat_map_replaces_circles_that_are_too_small(
    tmp_path, drawn, num_clients, num_classes, a_column
):
    """Includes so many clients that neighbours share a column."""
    data = dataset(num_clients, num_classes)
    plot_partition(data, tmp_path / "p.png")
    assert "scatter" not in drawn
    counts = data.class_counts().reshape(-1, a_column, num_classes).sum(axis=1)
    np.testing.assert_array_equal(drawn["imshow"][0].filled(0), counts.T)


def test_plot_of_an_empty_split_as_svg_leaves_pyplot_alone(tmp_path):
    from matplotlib import pyplot

    plot_partition(dataset(5), tmp_path / "p.svg", split="test")
    assert (tmp_path / "p.svg").stat().st_size
    assert pyplot.get_fignums() == []


def test_examples_without_classes_are_drawn_by_their_sizes(tmp_path, drawn):
    data = dataset(5)
    plot_partition(FederatedDataset(data.x, data.y / 2, None, data.partition), tmp_path / "p.png")
    assert not drawn and (tmp_path / "p.png").stat().st_size

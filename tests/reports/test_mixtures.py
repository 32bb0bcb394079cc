"""The picture of what clients mix their models of."""

import shutil

import numpy as np
import pytest
from matplotlib.axes import Axes

from tests.runs import tiny_config, train_run
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import plot_mixtures

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = tiny_config("pfedmb", evaluation={"every": 1, "clients_per_call": 3})
    config.algorithm.branches = 3
    return train_run(path, config)


def test_snapshots_have_the_mixtures_of_all_clients(run_dir):
    files = RunFiles(run_dir)
    assert files.snapshot_names() == ["alpha/dense1", "alpha/head"]
    rounds, (early, late) = files.snapshots("alpha/head")
    np.testing.assert_array_equal(rounds, [1, 2])
    assert early.shape == late.shape == (4, 3)
    np.testing.assert_allclose(late.sum(axis=1), 1, rtol=1e-6)
    moved = np.any(early != early[0, 0], axis=1)
    assert moved.sum() == 2  # those that took part in the first round
    np.testing.assert_allclose(early[~moved], 1 / 3)


def test_the_picture(run_dir, tmp_path, monkeypatch):
    drawn, stackplot = [], Axes.stackplot

    def recorded(axis, x, y, **options):
        drawn.append((x, y))
        return stackplot(axis, x, y, **options)

    monkeypatch.setattr(Axes, "stackplot", recorded)
    plot_mixtures(run_dir, tmp_path / "picture.png", clients=[2, 0])
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
    files = RunFiles(run_dir)
    alphas = [np.array(files.snapshots(f"alpha/{n}")[1]) for n in ("dense1", "head")]
    expected = [alpha[:, client].T for alpha in alphas for client in (2, 0)]
    assert len(drawn) == 4
    for (rounds, parts), alpha in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(rounds, [1, 2])
        np.testing.assert_array_equal(parts, alpha)


def test_one_evaluation_fills_the_picture(run_dir, tmp_path, monkeypatch):
    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run" / "snapshots" / "round_000002.npz").unlink()
    drawn = []
    stackplot = Axes.stackplot
    monkeypatch.setattr(
        Axes, "stackplot", lambda axis, *xy, **o: drawn.append(xy) or stackplot(axis, *xy, **o)
    )
    plot_mixtures(tmp_path / "run", tmp_path / "picture.png", clients=[0])
    assert len(drawn) == 2  # layers
    for rounds, parts in drawn:
        np.testing.assert_array_equal(rounds, [1, 2])
        np.testing.assert_array_equal(parts[:, 0], parts[:, 1])


def test_the_picture_of_all_clients(run_dir, tmp_path):
    plot_mixtures(run_dir, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    plot_mixtures(run_dir, tmp_path / "again.png", clients=[])
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "picture.png").read_bytes()


def test_what_there_is_not(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match="Did you mean 'alpha'"):
        plot_mixtures(run_dir, tmp_path / "picture.png", name="alhpa")
    with pytest.raises(OutputDirectoryError, match=r"are 0 to 3: \[4\]"):
        plot_mixtures(run_dir, tmp_path / "picture.png", clients=[1, 4])
    with pytest.raises(OutputDirectoryError, match="no snapshots"):
        plot_mixtures(tmp_path, tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())

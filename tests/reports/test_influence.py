"""Snapshots of runs, and the picture of who helps whom."""

import numpy as np
import pytest

from tests.runs import tiny_config, train_run
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import plot_influence


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = tiny_config("pgfed", rounds=3, evaluation={"every": 2})
    return train_run(path, config)


def test_a_snapshot_at_each_evaluation(run_dir):
    rounds, (early, late) = RunFiles(run_dir).snapshots()
    np.testing.assert_array_equal(rounds, [2, 3])
    assert early.shape == late.shape == (4, 4)
    assert np.any(early != late)
    assert late.min() >= 0


def test_the_picture(run_dir, tmp_path):
    plot_influence(run_dir, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_runs_that_have_none(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match="no snapshots"):
        plot_influence(tmp_path, tmp_path / "picture.png")
    with pytest.raises(OutputDirectoryError, match="Did you mean 'alpha'"):
        RunFiles(run_dir).snapshots("alpa")
    assert not list(tmp_path.iterdir())


def test_an_array_that_is_no_matrix_over_clients(run_dir, tmp_path):
    (tmp_path / "snapshots").mkdir()
    np.savez(tmp_path / "snapshots" / "round_000001.npz", mix=np.zeros([4, 2]))
    (tmp_path / "partition.npz").write_bytes((run_dir / "partition.npz").read_bytes())
    with pytest.raises(OutputDirectoryError, match="shape .4, 2., which is no matrix"):
        plot_influence(tmp_path, tmp_path / "picture.png", "mix")


def test_algorithms_with_nothing_to_show_leave_no_folder(tmp_path):
    assert not (train_run(tmp_path / "run", tiny_config()) / "snapshots").exists()

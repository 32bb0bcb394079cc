"""Tests the pictures and tables of single papers."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from docs.results import (
    best_epoch,
    data,
    honest,
    influence,
    loss_surface,
    mixtures,
    timeline,
)
from tests.analysis.hand_written import write_run
from tests.runs import tiny_config, train_run
from tff_pfl.config import run_of
from tff_pfl.data import Partition
from tff_pfl.local import Examples
from tff_pfl.models import Model, Task


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Writes a run with snapshots at two rounds of four clients, with 4, 3, 2 and 1 examples."""
    path = tmp_path_factory.mktemp("runs") / "run"
    (path / "snapshots").mkdir(parents=True)
    rows = np.split(np.arange(10), [1, 3, 6])
    Partition(rows[::-1], rows, rows).save(path / "partition.npz")
    for round_num in (2, 3):
        layers = {f"alpha/{layer}": np.full([4, 2], 1 / round_num) for layer in ("body", "head")}
        layers["alpha/head"][1] = (0.75, 0.25)
        matrix = np.arange(16.0).reshape(4, 4) / round_num
        np.savez(path / "snapshots" / f"round_{round_num:06d}.npz", alpha=matrix, **layers)
    parts = {"round": 10.0, "select": 1.0, "compute": 5.0, "write": 7.0, "update": 1.5}
    seconds = {f"{part}_seconds": [number] * 2 for part, number in parts.items()}
    timings = pd.DataFrame({"round": [7, 8], **seconds, "evaluation_seconds": [2.0, None]})
    timings.to_csv(path / "timings.csv", index=False)
    return path


def test_influence_shows_matrices_and_means(run_dir):
    *matrices, helps, is_helped = [it for it in influence.draw(run_dir).axes if it.get_title()]
    assert [axes.get_title() for axes in matrices] == ["round 2", "round 3"]
    # Clients are sorted by their numbers of examples; the last client has the fewest.
    shown = matrices[1].images[0].get_array()
    np.testing.assert_allclose(shown, (np.arange(16.0).reshape(4, 4) / 3)[::-1, ::-1])
    points = helps.collections[0].get_offsets()
    assert points[:, 0].tolist() == [4, 3, 2, 1]
    np.testing.assert_allclose(points[0], [4, (4 + 8 + 12) / 9])  # without the client itself
    np.testing.assert_allclose(is_helped.collections[0].get_offsets()[0], [4, (1 + 2 + 3) / 9])


def test_mixtures_show_the_parts_of_each_layer(run_dir):
    axes = np.reshape(mixtures.draw(run_dir, most_clients=2).axes, [2, 2])
    assert [row[0].get_ylabel() for row in axes] == ["body", "head"]
    # The first part of client 1 fills the panel of the head up to 0.75.
    heights = [path.get_paths()[0].vertices[:, 1] for path in axes[1, 1].collections]
    assert heights[0].min() == 0 and heights[0].max() == heights[1].min() == 0.75


def test_timeline_shows_when_each_part_of_a_round_begins(run_dir):
    axes = timeline.draw(run_dir).axes[0]
    lanes = [label.get_text().split()[0] for label in axes.get_yticklabels()]
    bars = [(bar.get_x(), bar.get_width(), bar.get_y()) for bar in axes.patches]
    found = {(lanes[round(y + 0.4)], x): width for x, width, y in bars if width}
    first = {("select", 0): 1000, ("compute", 1000): 5000, ("write", 1000): 7000}
    first |= {("update", 8500): 1500, ("evaluate", 10_000): 2000}
    last = {("select", 12_000): 1000, ("compute", 13_000): 5000, ("write", 13_000): 7000}
    assert found == first | last | {("update", 20_500): 1500}


def test_honest_clients_are_averaged(tmp_path):
    attack = {"attack": {"client_ids": [0], "fraction": 0.0}}
    runs = {
        f"FedAvg, noise | {option}": [
            write_run(tmp_path / option / str(seed), values, seed=seed, **attack)
            for seed, values in enumerate(of_seeds)
        ]
        for option, of_seeds in {
            "mean": [(0.0, 0.5, 0.75), (0.0, 0.75, 0.75)],
            "median": [(0.75, 1.0, 0.75)],
        }.items()
    }
    found = honest.accuracies(runs)
    assert found.values.tolist() == [
        ["FedAvg, noise", "mean", 0, 0.625],
        ["FedAvg, noise", "mean", 1, 0.75],
        ["FedAvg, noise", "median", 0, 0.875],
    ]
    table = data.over_seeds(found, "option")
    assert table.values.tolist() == [["68.75 ± 8.84", "87.50"]]  # of a single seed, its number


def norms(weight):
    return [np.linalg.norm(weight[..., i].ravel()) for i in range(weight.shape[-1])]


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 6, 4)], ids=str)
def test_filters_of_a_direction_have_the_norms_of_the_weights(shape):
    rng = np.random.default_rng(0)
    weight = (rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4, shape[-1])).astype(np.float32)
    weights = {"bias": np.ones(3, np.float32), "kernel": weight}
    first, second = (loss_surface.random_direction(weights, 3, index) for index in range(2))
    np.testing.assert_allclose(norms(first["kernel"]), norms(weight), rtol=1e-5)
    assert not first["bias"].any() and (first["kernel"] != second["kernel"]).all()


def test_surface_of_a_linear_model_has_a_closed_form():
    """Uses outputs `x K` with the loss `|x K|^2`, and moves K by hand."""
    model = Model(
        lambda seed: {"kernel": np.zeros([3, 2], np.float32)},
        lambda weights, x, training=False, seed=None: tf.matmul(x, weights["kernel"]),
        task=Task("own", lambda y, outputs: tf.reduce_sum(outputs**2, axis=-1)),
    )
    weights = {"kernel": np.arange(6, dtype=np.float32).reshape(3, 2)}
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    examples = Examples(x, np.zeros(7, np.int32), np.int32(7))
    steps = np.array([-0.5, 0.0, 1.0], np.float32)
    found = loss_surface.loss_surface(model, weights, examples, steps, seed=4)
    kernels = [loss_surface.random_direction(weights, 4, index)["kernel"] for index in range(2)]
    for i, j in np.ndindex(3, 3):
        moved = weights["kernel"] + steps[i] * kernels[0] + steps[j] * kernels[1]
        exact = np.mean(np.sum((x @ moved) ** 2, axis=1))
        assert found[i, j] == pytest.approx(exact, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("clients_in_a_loop")
def test_surfaces_are_centred_on_both_models_of_a_client(tmp_path):
    run_dir = train_run(tmp_path / "run", tiny_config())
    steps = np.zeros(1, np.float32)
    title, surfaces = loss_surface.surfaces_of_run(run_dir, steps, client="1")
    run = run_of(run_dir)
    model = run.experiment.model
    with run.restored() as found:
        examples = run.experiment.members.examples(1)
        (client,) = found.source.select_clients([1])
        centers = {
            "global": found.server_state.algorithm.weights,
            "personalized": client.state.model,
        }
        for name, weights in centers.items():
            logits = model.apply(weights, examples.x, training=False, seed=None)
            exact = np.mean(model.task.example_loss(examples.y, logits))
            assert surfaces[name].item() == pytest.approx(exact, rel=1e-5)
    assert f"loss on the {examples.size} training examples of client 1" in title


def test_losses_that_are_not_finite_leave_a_gap():
    steps = np.linspace(-1, 1, 5, dtype=np.float32)
    bowl = (steps[:, None] ** 2 + 2 * steps**2 + 0.5).astype(np.float32)
    assert loss_surface.rise_at_the_rim(bowl) == 41 / 16 - 0.5  # the mean of the border
    bowl[3], bowl[4] = np.nan, np.inf
    axes = loss_surface.plot("a title", steps, {"personalized": bowl}).axes[0]
    paths = axes.collections[0].get_paths()
    corners = [(0.9, 0.0), (0.0, 0.9), (-0.9, 0.9)]  # the first direction is horizontal
    assert [any(it.contains_point(at) for it in paths) for at in corners] == [False, True, True]


@pytest.mark.parametrize("page", ["fedpg", "pfedmb", "pgfed", "plgu"])
def test_pages_have_the_numbers_of_the_papers(page):
    tables = pd.read_csv(data.FOLDER / page / "paper.csv").select_dtypes(float).to_numpy()
    shown = data.pick(page, paper=True).query("study != 'new clients'")["value"].round(4)
    scale = 1 if page == "fedpg" else 100  # of shares and of percent
    assert set(shown) <= set(np.round(tables[np.isfinite(tables)] / scale, 4))


@pytest.mark.thorough
def test_new_clients_are_evaluated_after_each_epoch(tmp_path):
    config = tiny_config("fedavg", rounds=1)
    config.new_clients.update(number=2, fine_tune_epochs=2)
    run = run_of(train_run(tmp_path / "run", config))
    found, measured = best_epoch.by_epoch(run), run.result.final.metrics
    assert found["epochs"].tolist() == [0, 1, 2]
    for epochs, model in ((0, "global"), (2, "fine_tuned")):
        name = best_epoch.ACCURACY._replace(model=model, statistic="mean")
        assert found["mean"][epochs] == measured[name]
    assert best_epoch.by_epoch(run, rate=0.0)["mean"].nunique() == 1

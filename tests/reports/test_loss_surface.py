"""The loss around the models of a tiny run, and pictures of surfaces that are written by hand."""

import dataclasses
import shutil

import matplotlib.image
import numpy as np
import pytest

from tests.runs import tiny_config, train_run
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import ConfigError, OutputDirectoryError, restored_run
from tff_pfl.reports import LossSurfaces, loss_surfaces_of_run, plot_loss_surfaces
from tff_pfl.reports.loss_surface import rise_at_the_rim, training_examples
from tff_pfl.templates import PersonalizedProcess

AXIS = np.linspace(-1, 1, 5, dtype=np.float32)
BOWL = (AXIS[:, None] ** 2 + 2 * AXIS**2 + 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("runs") / "run", tiny_config())


def largest_client(run_dir):
    """`(client id, number of its training examples)`."""
    sizes = [len(rows) for rows in Partition.load(str(run_dir / "partition.npz")).train]
    return int(np.argmax(sizes)), max(sizes)


def test_both_models_of_the_client_with_most_examples(run_dir):
    found = loss_surfaces_of_run(run_dir, points=3, radius=0.5)
    client_id, size = largest_client(run_dir)
    assert found.title == (
        f"ditto on digits, round 2\nloss on the {size} training examples of client {client_id}"
    )
    np.testing.assert_array_equal(found.axis, np.array([-0.5, 0.0, 0.5], np.float32))
    assert list(found.surfaces) == ["global", "personalized"]
    with restored_run(run_dir) as run:
        examples = run.dataset.examples(client_id)
        (client,) = run.source.select_clients([client_id])
        for name, weights in (
            ("global", run.server_state.algorithm.weights),
            ("personalized", client.state.model),
        ):
            logits = run.model.apply(weights, examples.x, training=False, seed=None)
            exact = np.mean(run.model.example_loss(examples.y, logits))
            assert found.surfaces[name][1, 1] == pytest.approx(exact, rel=1e-5)
    assert found.surfaces["global"][1, 1] != found.surfaces["personalized"][1, 1]


def test_another_client_on_some_of_its_examples(run_dir):
    client_id = (largest_client(run_dir)[0] + 1) % 4
    found = loss_surfaces_of_run(run_dir, client_id=client_id, points=3, max_examples=10)
    assert "loss on 10 of the " in found.title and f"of client {client_id}" in found.title
    with restored_run(run_dir) as run:
        everything = run.dataset.examples(client_id)
        size = int(everything.size)
        drawn, again, most, all_ = (
            training_examples(run, client_id, number) for number in (10, 10, size - 1, size)
        )
        logits = run.model.apply(
            run.server_state.algorithm.weights, drawn.x, training=False, seed=None
        )
        exact = np.mean(run.model.example_loss(drawn.y, logits))
    np.testing.assert_array_equal(drawn.x, again.x)
    np.testing.assert_array_equal(all_.x, everything.x)
    assert drawn.size == len(drawn.x) == len(drawn.y) == 10
    # Any of them, each with its label and at most once: no two of these pictures are equal.
    pictures = [x.tobytes() for x in everything.x]
    assert len(set(pictures)) == size
    assert len({x.tobytes() for x in most.x}) == size - 1
    rows = [pictures.index(x.tobytes()) for x in drawn.x]
    assert max(rows) > 10
    np.testing.assert_array_equal(everything.y[rows], drawn.y)
    assert found.surfaces["global"][1, 1] == pytest.approx(exact, rel=1e-5)


def test_an_algorithm_without_a_global_model(run_dir, monkeypatch):
    monkeypatch.setattr(PersonalizedProcess, "global_weights", None)
    found = loss_surfaces_of_run(run_dir, points=3, max_examples=5)
    assert list(found.surfaces) == ["personalized"]


def test_the_rise_is_that_of_the_border():
    surface = np.zeros([5, 5], np.float32)
    surface[0], surface[:, 0], surface[2, 2], surface[1, 1] = 8.0, 8.0, 1.0, 100.0
    assert rise_at_the_rim(surface) == 9 * 8 / 16 - 1
    surface[4, 4] = np.inf
    assert rise_at_the_rim(surface) == np.inf


def test_the_numbers_beside_the_picture(tmp_path):
    found = LossSurfaces("a title", AXIS, {"global": BOWL, "personalized": 2 * BOWL})
    path = tmp_path / "new" / "folder" / "surface.svg"
    assert plot_loss_surfaces(found, path) == str(path.with_suffix(".npz"))
    with np.load(path.with_suffix(".npz")) as numbers:
        assert set(numbers) == {"axis", "global", "personalized"}
        np.testing.assert_array_equal(numbers["axis"], AXIS)
        np.testing.assert_array_equal(numbers["global"], BOWL)
        np.testing.assert_array_equal(numbers["personalized"], 2 * BOWL)
    picture = path.read_text()
    # 41 / 16 is the mean of the border, 0.5 is in the centre.
    for text in (
        "a title",
        "the global model",
        "loss 0.5 at the cross,",
        "+2.06 on average at the rim",
        "the client's own model",
        "+4.12",
    ):
        assert text in picture
    assert "not finite" not in picture and "logarithmic" not in picture
    plot_loss_surfaces(found._replace(surfaces={"global": BOWL**3}), path)
    assert "logarithmic" in path.read_text()


def pixels(path, surfaces):
    plot_loss_surfaces(LossSurfaces("a title", AXIS, surfaces), path)
    return matplotlib.image.imread(path)[..., :3]


def share_of(picture, color):
    return np.mean(np.abs(picture - color).max(axis=-1) < 0.01)


def gap(picture):
    """Where it is grey, over more than the edge of a letter."""
    grey = np.abs(picture - 0.6).max(axis=-1) < 0.01
    for shift, axis in ((1, 0), (1, 1), (2, 0), (2, 1)):
        grey = grey & np.roll(grey, shift, axis)
    return grey


def test_what_is_not_finite_is_a_gap(tmp_path):
    assert not gap(pixels(tmp_path / "a.png", {"global": BOWL})).any()
    holed = BOWL.copy()
    holed[3:, 3:] = [[np.nan, np.inf], [-np.inf, np.nan]]
    grey = gap(pixels(tmp_path / "b.png", {"global": holed}))
    # In the quarter where both steps are large, the first to the right and the second up.
    rows, columns = (np.argwhere(grey) / grey.shape).mean(axis=0)
    assert rows < 0.4 < columns
    assert 0.03 < grey.mean() < 0.3
    svg = tmp_path / "c.svg"
    plot_loss_surfaces(LossSurfaces("a title", AXIS, {"global": holed}), svg)
    assert "4 of 25 losses are not finite" in svg.read_text()
    assert "not finite at the rim" in svg.read_text()


def test_the_first_direction_goes_to_the_right(tmp_path):
    surface = np.where(AXIS[:, None] > 0.4, np.nan, BOWL)
    grey = np.argwhere(gap(pixels(tmp_path / "a.png", {"global": surface})))
    height, width = np.ptp(grey, axis=0)
    assert height > 1.5 * width


def test_surfaces_share_their_colours(tmp_path):
    from matplotlib import colormaps

    lowest = np.array(colormaps["viridis"](0.5 / 15)[:3])
    alone = share_of(pixels(tmp_path / "a.png", {"global": 100 * BOWL}), lowest)
    beside = pixels(tmp_path / "b.png", {"global": 100 * BOWL, "personalized": 0.01 * BOWL})
    left = beside[:, : beside.shape[1] // 3]
    assert alone > 0.005
    assert share_of(left, lowest) == 0


@pytest.mark.parametrize(
    "surfaces", [[np.zeros_like(BOWL)], [np.full_like(BOWL, np.nan)], [1e30 * BOWL, -BOWL]]
)
def test_odd_surfaces_are_drawn_without_warnings(tmp_path, surfaces, recwarn):
    pixels(tmp_path / "a.png", dict(zip(("global", "personalized"), surfaces, strict=False)))
    assert not [str(warning.message) for warning in recwarn]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_id": 4}, r"Client 4 does not exist: ids are 0\.\.3"),
        ({"client_id": -1}, r"Client -1 does not exist: ids are 0\.\.3"),
        ({"points": 4}, "odd number of points a side, 3 or more, got points=4"),
        ({"radius": -1.0}, "radius of a loss surface is positive and finite, got -1.0"),
        ({"max_examples": 0}, "needs 1 example or more, got 0"),
    ],
    ids=str,
)
def test_options_that_cannot_be(run_dir, options, message):
    with pytest.raises(ConfigError, match=message):
        loss_surfaces_of_run(run_dir, **options)


def test_a_client_without_training_examples(run_dir):
    with restored_run(run_dir) as run:
        rows = list(run.dataset.partition.train)
        rows[2] = rows[2][:0]
        partition = dataclasses.replace(run.dataset.partition, train=tuple(rows))
        dataset = FederatedDataset(run.dataset.x, run.dataset.y, 10, partition)
        with pytest.raises(ConfigError, match="Client 2 has no training examples"):
            training_examples(run._replace(dataset=dataset), 2, 10)


def test_runs_without_a_checkpoint(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match="no_run has no config.json of a run"):
        loss_surfaces_of_run(tmp_path / "no_run")
    shutil.copytree(run_dir, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint"))
    with pytest.raises(OutputDirectoryError, match="run has no checkpoint of a run"):
        loss_surfaces_of_run(tmp_path / "run")

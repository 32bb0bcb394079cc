"""Tests the loss around the models of a tiny run, and figures of hand-written surfaces."""

import contextlib
import dataclasses

import numpy as np
import pytest
from matplotlib.text import Text

from tests.runs import tiny_config, train_run
from tff_pfl import experiment
from tff_pfl.analysis import LossSurfaces, loss_surfaces_of_run, plot_loss_surfaces
from tff_pfl.analysis.loss_surface import rise_at_the_rim, training_examples
from tff_pfl.config import ConfigError
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import restored_run

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

AXIS = np.linspace(-1, 1, 5, dtype=np.float32)
BOWL = (AXIS[:, None] ** 2 + 2 * AXIS**2 + 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, clients_in_a_loop):
    return train_run(tmp_path_factory.mktemp("runs") / "run", tiny_config())


def largest_client(run_dir):
    """Returns the id of the client with the most training examples, and their number."""
    sizes = [len(rows) for rows in Partition.load(str(run_dir / "partition.npz")).train]
    return int(np.argmax(sizes)), max(sizes)


def test_surfaces_are_centred_on_both_models_of_the_largest_client(run_dir):
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
            exact = np.mean(run.model.task.example_loss(examples.y, logits))
            assert found.surfaces[name][1, 1] == pytest.approx(exact, rel=1e-5)
    assert found.surfaces["global"][1, 1] != found.surfaces["personalized"][1, 1]


def test_examples_of_another_client_are_sampled(run_dir):
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
        exact = np.mean(run.model.task.example_loss(drawn.y, logits))
    np.testing.assert_array_equal(drawn.x, again.x)
    np.testing.assert_array_equal(all_.x, everything.x)
    assert drawn.size == len(drawn.x) == len(drawn.y) == 10
    # Examples are drawn from all rows, without repetition, with their labels. All pictures differ.
    pictures = [x.tobytes() for x in everything.x]
    assert len(set(pictures)) == size
    assert len({x.tobytes() for x in most.x}) == size - 1
    rows = [pictures.index(x.tobytes()) for x in drawn.x]
    assert max(rows) > 10
    np.testing.assert_array_equal(everything.y[rows], drawn.y)
    assert found.surfaces["global"][1, 1] == pytest.approx(exact, rel=1e-5)


def test_algorithm_without_a_global_model_has_one_surface(run_dir, monkeypatch):
    @contextlib.contextmanager
    def without_a_global_model(*args, **options):
        with restored_run(*args, **options) as run:
            run.process = dataclasses.replace(run.process, global_weights=None)
            yield run

    monkeypatch.setattr(experiment, "restored_run", without_a_global_model)
    found = loss_surfaces_of_run(run_dir, points=3, max_examples=5)
    assert list(found.surfaces) == ["personalized"]


def test_rise_is_the_mean_of_the_border_minus_the_centre():
    surface = np.zeros([5, 5], np.float32)
    surface[0], surface[:, 0], surface[2, 2], surface[1, 1] = 8.0, 8.0, 1.0, 100.0
    assert rise_at_the_rim(surface) == 9 * 8 / 16 - 1
    surface[4, 4] = np.inf
    assert rise_at_the_rim(surface) == np.inf


def texts(figure):
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_figure_has_the_losses_in_its_titles():
    found = LossSurfaces("a title", AXIS, {"global": BOWL, "personalized": 2 * BOWL})
    shown = texts(plot_loss_surfaces(found))
    # 41 / 16 is the mean of the border, 0.5 is in the centre.
    for text in (
        "a title",
        "the global model\nloss 0.5 at the cross,\n+2.06 on average at the rim",
        "the client's own model\nloss 1 at the cross,\n+4.12",
    ):
        assert text in shown
    assert "not finite" not in shown and "logarithmic" not in shown
    steep = found._replace(surfaces={"global": BOWL**3})
    assert "logarithmic" in texts(plot_loss_surfaces(steep))


def test_losses_that_are_not_finite_leave_a_gap():
    holed = BOWL.copy()
    holed[3:, 3:] = [[np.nan, np.inf], [-np.inf, np.nan]]
    figure = plot_loss_surfaces(LossSurfaces("a title", AXIS, {"global": holed}))
    assert "4 of 25 losses are not finite" in texts(figure)
    assert "not finite at the rim" in texts(figure)
    # The gap is where both steps are large: nothing is drawn at (1, 1), but at (1, -1).
    filled = figure.axes[0].collections[0]
    corners = {
        corner: any(path.contains_point(corner) for path in filled.get_paths())
        for corner in ((0.9, 0.9), (0.9, -0.9), (-0.9, 0.9))
    }
    assert list(corners.values()) == [False, True, True]


def test_first_direction_is_horizontal():
    surface = np.where(AXIS[:, None] > 0.4, np.nan, BOWL)
    figure = plot_loss_surfaces(LossSurfaces("a title", AXIS, {"global": surface}))
    box = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData)
    assert (box.x1, box.y1) == (0, 1)


def test_surfaces_share_one_colour_scale():
    surfaces = {"global": 100 * BOWL, "personalized": 0.01 * BOWL}
    figure = plot_loss_surfaces(LossSurfaces("a title", AXIS, surfaces))
    first, second = (axes.collections[0] for axes in figure.axes[:2])
    assert first.norm.vmin == second.norm.vmin == pytest.approx(0.005)
    assert first.norm.vmax == second.norm.vmax == pytest.approx(350)


def test_odd_surfaces_are_drawn_without_warnings(recwarn):
    for surfaces in ([0 * BOWL], [np.full_like(BOWL, np.nan)], [1e30 * BOWL, -BOWL]):
        named = dict(zip(("global", "personalized"), surfaces, strict=False))
        plot_loss_surfaces(LossSurfaces("a title", AXIS, named)).draw_without_rendering()
    assert not [str(warning.message) for warning in recwarn]


def test_client_must_exist(run_dir):
    with pytest.raises(ConfigError, match=r"Client 4 does not exist: ids are 0\.\.3"):
        loss_surfaces_of_run(run_dir, client_id=4)


def test_client_must_have_training_examples(run_dir):
    with restored_run(run_dir) as run:
        rows = list(run.dataset.partition.train)
        rows[2] = rows[2][:0]
        partition = dataclasses.replace(run.dataset.partition, train=tuple(rows))
        run.dataset = FederatedDataset(run.dataset.x, run.dataset.y, 10, partition)
        with pytest.raises(ConfigError, match="Client 2 has no training examples"):
            training_examples(run, 2, 10)

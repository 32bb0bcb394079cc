"""Draws PLGU's Figure 7, the loss around models: `python -m docs.results.loss_surface RUN OUTPUT`.

Two Gaussian directions span a plane around a model. They are normalised by filter, as in Li et al.,
"Visualizing the loss landscape of neural nets", NeurIPS 2018, section 4: `d` becomes

    d_f |w_f| / |d_f|       for each filter f of the weights w.

A network with ReLU computes the same function if a filter is scaled and the next layer is scaled
back; without the normalisation, surfaces around larger weights would look flatter. A step of 1 is
as long as the weights.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

from docs.results import command
from tff_pfl import config as configs
from tff_pfl.analysis import figures

_TITLES = {"global": "the global model", "personalized": "the client's own model"}
_LEVELS = 16
# Separates the random numbers of directions from others with the same seed.
_DIRECTIONS_STREAM = 0x10553


def random_direction(weights: Any, seed: int, index: int) -> Any:
    """Draws a Gaussian direction whose filters have the norms of the filters in the weights.

    A filter is a slice along the last axis, which makes one output: a channel of a convolution's
    kernel, or a column of a dense kernel. Biases and parameters of normalisations do not move.
    """
    rng = np.random.default_rng([seed, index, _DIRECTIONS_STREAM])

    def norms(weight):
        return np.sqrt(np.square(weight, dtype=np.float64).sum(tuple(range(weight.ndim - 1))))

    def direction(weight):
        if weight.ndim <= 1:
            return np.zeros_like(weight)
        drawn = rng.standard_normal(weight.shape)
        return (drawn * norms(weight) / norms(drawn)).astype(weight.dtype)

    return tree.map_structure(lambda leaf: direction(np.asarray(leaf)), weights)


def loss_surface(model, weights: Any, examples, steps: np.ndarray, seed: int = 0) -> np.ndarray:
    """Computes the mean loss at `w + a d_0 + b d_1`, for all `a` and `b` in `steps`.

    Models of the same shapes get the same Gaussian directions, normalised by each model's weights.

    Returns:
        float32 `[len(steps), len(steps)]`. Rows are steps along the first direction.
    """
    import tensorflow as tf

    from tff_pfl.local import evaluate, trees

    directions = [random_direction(weights, seed, index) for index in range(2)]
    weights, directions, examples = tf.nest.map_structure(
        tf.convert_to_tensor, (weights, directions, examples)
    )

    @tf.function(autograph=False)
    def loss(*point):
        moved = weights
        for direction, step in zip(directions, point, strict=True):
            moved = trees.add(moved, trees.scale(direction, step))
        return evaluate(model, moved, examples, batch_size=200)["loss"].mean

    return np.array([[loss(tf.constant(a), tf.constant(b)) for b in steps] for a in steps])


def surfaces_of_run(
    run: str, steps: np.ndarray, client: str = ""
) -> tuple[str, Mapping[str, np.ndarray]]:
    """Computes the training loss of a client around the global model and around its own model.

    Args:
        run: The run's folder. The models are those of its last checkpoint.
        steps: The steps along both directions.
        client: The client's name or id; by default the client with the most training examples.

    Returns:
        A title, and the surfaces of the models `global`, if there is one, and `personalized`.
    """
    found = configs.run_of(run)
    experiment, dataset = found.experiment, found.experiment.members
    process = experiment.process
    with found.restored() as restored:
        server_state = restored.server_state
        client_id = dataset.ids_of([client])[0] if client else int(np.argmax(dataset.sizes()))
        weights = {}
        if process.global_weights is not None:
            weights["global"] = process.global_weights(server_state)
        clients = restored.source.clients_of_ids([client_id])
        (weights["personalized"],) = process.personalize(server_state, clients)
        model = process.evaluated_model
        examples = dataset.examples(client_id, "train")
        surfaces = {
            name: loss_surface(model, center, examples, steps, experiment.seed)
            for name, center in weights.items()
        }
    title = (
        f"{experiment.title}, round {restored.round_num}\nloss on the {examples.size} training "
        f"examples of client {dataset.partition.name_of(client_id)}"
    )
    return title, surfaces


def rise_at_the_rim(surface: np.ndarray) -> float:
    """Returns the mean loss on the border of the grid minus the loss at its centre."""
    rim = np.concatenate([*surface[[0, -1]], *surface[1:-1, [0, -1]]])
    return rim.mean(dtype=np.float64) - surface[len(surface) // 2, len(surface) // 2]


@figures.styled
def plot(title: str, steps: np.ndarray, surfaces: Mapping[str, np.ndarray]):
    """Draws surfaces side by side, with the same logarithmic colours."""
    from matplotlib.colors import LogNorm

    losses = np.stack(list(surfaces.values()))
    most = losses[np.isfinite(losses)].max()
    least = max(np.nanmin(losses), 1e-4 * most)
    levels = np.geomspace(least, most, _LEVELS)
    figure = figures.new_figure(3.9 * len(surfaces) + 1.2, 5.0)
    panels = figure.subplots(1, len(surfaces), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, surface) in zip(panels, surfaces.items(), strict=True):
        shown = np.ma.masked_invalid(np.maximum(surface, least)).T  # the second axis is vertical
        contours = axes.contourf(steps, steps, shown, levels, norm=LogNorm(least, most))
        axes.contour(contours, colors="black", linewidths=0.4, alpha=0.5)
        axes.plot(0.0, 0.0, "+", color="white", markersize=12, markeredgewidth=2.0)
        center, rise = surface[len(steps) // 2, len(steps) // 2], rise_at_the_rim(surface)
        axes.set_title(
            f"{_TITLES[name]}\nloss {center:.3g} at the cross,\n{rise:+.3g} on average at the rim"
        )
        axes.set_aspect("equal")
    panels[0].set_ylabel("second direction")
    scale = {"label": "mean loss, logarithmic", "ticks": levels[::3], "format": "%.3g"}
    figure.colorbar(contours, ax=panels, **scale)
    first = "first direction (a step of 1 has the norm of the weights)"
    figure.supxlabel(first, fontsize="medium")
    figure.suptitle(title)
    return figure


def draw(run: str, client: str = "", radius: float = 1.0, points: int = 10):
    """Draws the training loss of a client around the global model and around its own model.

    Args:
        run: The run's folder.
        client: The client's name or id; by default the client with the most training examples.
        radius: Half a side of the plane.
        points: The grid has this many points in each direction from the model.
    """
    steps = (radius * np.arange(-points, points + 1) / points).astype(np.float32)
    title, surfaces = surfaces_of_run(run, steps, client)
    return plot(title, steps, surfaces)


if __name__ == "__main__":
    command.main(draw)

"""Draws the loss around the models of a run, as in PLGU's Figure 7."""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tree

from tff_pfl import evaluation, experiment
from tff_pfl.analysis import figures
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.config import ConfigError
from tff_pfl.output.files import whole_file

if TYPE_CHECKING:  # most reports work without TensorFlow
    from tff_pfl.experiment import RestoredRun
    from tff_pfl.local import Examples

# Keeps the random choice of examples apart from other random numbers of the seed.
_EXAMPLES_STREAM = 0x10554
_LEVELS = 16
_TITLES = {"global": "the global model", "personalized": "the client's own model"}
_GAP_COLOR = "0.6"
# Above this ratio of the largest to the smallest loss, equal steps would hide low losses.
_LOGARITHMIC_FROM = 20.0


class LossSurfaces(NamedTuple):
    """The loss around the models of a client.

    Attributes:
        title: A title with the run, the round, the client and the examples.
        axis: The steps along both directions, float32 `[points]`.
        surfaces: The losses around each model, float32 `[points, points]`. The keys are `global`,
            if there is a global model, and `personalized`. See `tff_pfl.evaluation.loss_surface`.
    """

    title: str
    axis: np.ndarray
    surfaces: Mapping[str, np.ndarray]


def loss_surfaces_of_run(
    run_dir: str | os.PathLike,
    *,
    client_id: int | str | None = None,
    points: int = 21,
    radius: float = 1.0,
    max_examples: int = 1000,
    trust_imports: bool | Collection[str] = (),
) -> LossSurfaces:
    """Computes the training loss of a client around the global model and its personalized model.

    Both models are from the last checkpoint, and both losses use the same examples. The run's seed
    draws the directions and chooses the examples.

    Args:
        run_dir: The run's output directory. It is not changed.
        client_id: The client's name, or its id if clients have no names; by default the client with
            the most training examples.
        points: See `tff_pfl.evaluation.loss_surface`.
        radius: See `tff_pfl.evaluation.loss_surface`.
        max_examples: The most examples to use. A larger set is sampled.
        trust_imports: See `tff_pfl.config.config_of_run`.

    Raises:
        OutputDirectoryError: The run does not exist or has no checkpoint.
        ConfigError: The run's config is of another version, or the client does not exist.
        ValueError: `points` or `radius` is out of range.
    """
    axis = evaluation.grid_axis(points, radius)
    with experiment.restored_run(run_dir, trust_imports=trust_imports) as run:
        client_id = _id_of(run.dataset, client_id)
        examples = training_examples(run, client_id, max_examples)
        weights = {}
        if run.process.global_weights is not None:
            weights["global"] = run.process.global_weights(run.server_state)
        clients = run.source.clients_of_ids([client_id])
        (weights["personalized"],) = run.process.personalize(run.server_state, clients)
        model = evaluation.evaluated_model(run.process, run.model)
        surfaces = {
            name: evaluation.loss_surface(
                model, center, examples, points=points, radius=radius, seed=run.config.seed
            )
            for name, center in weights.items()
        }
    share = f"{examples.size} of " if examples.size < run.dataset.sizes()[client_id] else ""
    title = (
        f"{run.title}, round {run.round_num}\nloss on {share}the "
        f"{run.dataset.sizes()[client_id]} training examples of client "
        f"{run.dataset.partition.name_of(client_id)}"
    )
    return LossSurfaces(title, axis, surfaces)


def _id_of(dataset, client) -> int:
    """Returns the id of a client, or of the client with the most training examples."""
    if client is None:
        return int(np.argmax(dataset.sizes()))
    try:
        return dataset.ids_of([client])[0]
    except UnknownNameError as error:
        raise ConfigError(str(error)) from error


def training_examples(run: "RestoredRun", client_id: int, max_examples: int) -> "Examples":
    """Returns the training examples of a client, or `max_examples` drawn at random from more.

    Raises:
        ConfigError: The client has no training examples.
    """
    examples = run.dataset.examples(client_id, "train")
    size = int(examples.size)
    if not size:
        name = run.dataset.partition.name_of(client_id)
        raise ConfigError(f"Client {name} has no training examples.")
    if size <= max_examples:
        return examples
    rng = np.random.default_rng([run.config.seed, client_id, _EXAMPLES_STREAM])
    rows = np.sort(rng.choice(size, max_examples, replace=False))
    x, y = tree.map_structure(lambda leaf: leaf[rows], (examples.x, examples.y))
    return examples._replace(x=x, y=y, size=np.int32(max_examples))


def rise_at_the_rim(surface: np.ndarray) -> float:
    """Returns the mean loss on the border of the grid minus the loss at its centre."""
    is_rim = np.ones(surface.shape, bool)
    is_rim[1:-1, 1:-1] = False
    center = len(surface) // 2
    return float(surface[is_rim].mean(dtype=np.float64) - surface[center, center])


def save_loss_surfaces(found: LossSurfaces, path: str | os.PathLike) -> None:
    """Writes `axis` and each surface to an .npz file."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with whole_file(path, "wb") as file:
        np.savez_compressed(file, axis=found.axis, **found.surfaces)


@figures.styled
def plot_loss_surfaces(found: LossSurfaces):
    """Draws surfaces side by side, with the same colours; losses that are not finite are grey.

    Args:
        found: The result of `loss_surfaces_of_run`.

    Returns:
        The Matplotlib figure.
    """
    from matplotlib.colors import LogNorm

    levels, norm = _levels(np.stack(list(found.surfaces.values())))
    figure = figures.new_figure(3.9 * len(found.surfaces) + 1.2, 5.0)
    panels = figure.subplots(1, len(found.surfaces), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, surface) in zip(panels, found.surfaces.items(), strict=True):
        contours = _draw(axes, _TITLES[name], found.axis, surface, levels, norm)
    panels[0].set_ylabel("second direction")
    label = "mean loss, logarithmic" if isinstance(norm, LogNorm) else "mean loss"
    figure.colorbar(contours, ax=panels, label=label, ticks=levels[::3], format="%.3g")
    step = "first direction (a step of 1 has the norm of the weights)"
    figure.supxlabel(step, fontsize="medium")
    figure.suptitle(found.title)
    return figure


def _levels(losses):
    """Returns the levels of the contours and their colour scale, linear or logarithmic."""
    from matplotlib.colors import LogNorm, Normalize

    finite = losses[np.isfinite(losses)].astype(np.float64)
    least, most = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    if least == most:
        most = least + 1.0
    if least > 0 and most / least > _LOGARITHMIC_FROM:
        return np.geomspace(least, most, _LEVELS), LogNorm(least, most)
    return np.linspace(least, most, _LEVELS), Normalize(least, most)


def _draw(axes, name, axis, surface, levels, norm):
    """Draws one panel; returns its contours."""
    axes.set_facecolor(_GAP_COLOR)
    shown = np.ma.masked_invalid(surface).T  # the second direction is vertical
    contours = axes.contourf(axis, axis, shown, levels, norm=norm, cmap="viridis")
    axes.contour(contours, colors="black", linewidths=0.4, alpha=0.5)
    axes.plot(0.0, 0.0, "+", color="white", markersize=12, markeredgewidth=2.0)
    center = surface[len(surface) // 2, len(surface) // 2]
    rise = rise_at_the_rim(surface)
    rise = f"{rise:+.3g} on average" if np.isfinite(rise) else "not finite"
    title = f"{name}\nloss {center:.3g} at the cross,\n{rise} at the rim"
    missing = np.sum(~np.isfinite(surface))
    if missing:
        title += f"\n{missing} of {surface.size} losses are not finite (grey)"
    axes.set_title(title)
    axes.grid(visible=False)
    axes.set_aspect("equal")
    return contours

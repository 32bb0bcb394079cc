"""The figure of the loss around the models of a run: PLGU's Figure 7."""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tff_pfl import evaluation, experiment
from tff_pfl.analysis import figures
from tff_pfl.experiment import ConfigError
from tff_pfl.files import whole_file

if TYPE_CHECKING:  # reports of what is on disk do without TensorFlow
    from tff_pfl.experiment import RestoredRun
    from tff_pfl.local import Examples

# Separates the random choice of examples from other random numbers of the same seed.
_EXAMPLES_STREAM = 0x10554
_LEVELS = 16
_TITLES = {"global": "the global model", "personalized": "the client's own model"}
_GAP_COLOR = "0.6"
# From this ratio of the largest to the smallest loss on, equal steps would hide what is low.
_LOGARITHMIC_FROM = 20.0


class LossSurfaces(NamedTuple):
    """The loss around the models of a client.

    Attributes:
        title: Names the run, the round, the client and the examples.
        axis: float32 `[points]`, the steps along both directions.
        surfaces: float32 `[points, points]` by `global`, if there is a global model, and
            `personalized`; see `tff_pfl.evaluation.loss_surface`.
    """

    title: str
    axis: np.ndarray
    surfaces: Mapping[str, np.ndarray]


def loss_surfaces_of_run(
    run_dir: str | os.PathLike,
    *,
    client_id: int | None = None,
    points: int = 21,
    radius: float = 1.0,
    max_examples: int = 1000,
    trust_imports: bool | Collection[str] = (),
) -> LossSurfaces:
    """Computes the training loss of a client around the global and its personalized model.

    Both models are those of the last checkpoint, and their losses are on the same examples. The
    run's seed is the seed of the directions and of the choice of examples.

    Args:
        run_dir: The run's output directory; nothing in it is changed.
        client_id: The client; by default the one with most training examples.
        points: See `tff_pfl.evaluation.loss_surface`.
        radius: See `tff_pfl.evaluation.loss_surface`.
        max_examples: If the client has more, so many are drawn.
        trust_imports: See `tff_pfl.experiment.config_of_run`.

    Raises:
        OutputDirectoryError: If there is no run, or it has no checkpoint.
        ConfigError: If the run's config is of another version, or there is no such client.
        ValueError: If the points or the radius are wrong.
    """
    axis = evaluation.grid_axis(points, radius)
    with experiment.restored_run(run_dir, trust_imports=trust_imports) as run:
        if client_id is None:
            client_id = int(np.argmax(run.dataset.sizes()))
        examples = training_examples(run, client_id, max_examples)
        weights = {}
        if run.process.global_weights is not None:
            weights["global"] = run.process.global_weights(run.server_state)
        clients = run.source.select_clients([client_id])
        (weights["personalized"],) = run.process.personalize(run.server_state, clients)
        model = run.process.evaluated_model or run.model
        surfaces = {
            name: evaluation.loss_surface(
                model, center, examples, points=points, radius=radius, seed=run.config.seed
            )
            for name, center in weights.items()
        }
    share = f"{examples.size} of " if examples.size < run.dataset.sizes()[client_id] else ""
    title = (
        f"{run.title}, round {run.round_num}\nloss on {share}the "
        f"{run.dataset.sizes()[client_id]} training examples of client {client_id}"
    )
    return LossSurfaces(title, axis, surfaces)


def training_examples(run: "RestoredRun", client_id: int, max_examples: int) -> "Examples":
    """Returns the training examples of a client; if it has more, so many that are drawn.

    Raises:
        ConfigError: If there is no such client, or it has none.
    """
    try:
        examples = run.dataset.examples(client_id, "train")
    except IndexError as error:
        raise ConfigError(str(error)) from error
    size = int(examples.size)
    if not size:
        raise ConfigError(f"Client {client_id} has no training examples.")
    if size <= max_examples:
        return examples
    rng = np.random.default_rng([run.config.seed, client_id, _EXAMPLES_STREAM])
    rows = np.sort(rng.choice(size, max_examples, replace=False))
    return examples._replace(x=examples.x[rows], y=examples.y[rows], size=np.int32(max_examples))


def rise_at_the_rim(surface: np.ndarray) -> float:
    """Returns the mean of the loss at the border of the grid, less the loss in its centre."""
    is_rim = np.ones(surface.shape, bool)
    is_rim[1:-1, 1:-1] = False
    center = len(surface) // 2
    return float(surface[is_rim].mean(dtype=np.float64) - surface[center, center])


def save_loss_surfaces(found: LossSurfaces, path: str | os.PathLike) -> None:
    """Writes the numbers of `loss_surfaces_of_run` as .npz: `axis` and each surface."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with whole_file(path, "wb") as file:
        np.savez_compressed(file, axis=found.axis, **found.surfaces)


@figures.styled
def plot_loss_surfaces(found: LossSurfaces):
    """Draws surfaces side by side, in the same colours; what is not finite is a grey gap.

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
    step = "first direction (a step of 1 is as long as the weights)"
    figure.supxlabel(step, fontsize="medium")
    figure.suptitle(found.title)
    return figure


def _levels(losses):
    """Where contours are, and their colours: in equal steps, or by the logarithm."""
    from matplotlib.colors import LogNorm, Normalize

    finite = losses[np.isfinite(losses)].astype(np.float64)
    least, most = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    if least == most:
        most = least + 1.0
    if least > 0 and most / least > _LOGARITHMIC_FROM:
        return np.geomspace(least, most, _LEVELS), LogNorm(least, most)
    return np.linspace(least, most, _LEVELS), Normalize(least, most)


def _draw(axes, name, axis, surface, levels, norm):
    """A panel."""
    axes.set_facecolor(_GAP_COLOR)
    shown = np.ma.masked_invalid(surface).T  # rows of pixels are the second direction
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

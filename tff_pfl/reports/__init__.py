"""Pictures and tables of finished runs; `tff_pfl.experiment.RunFiles` reads their files."""

from tff_pfl.reports.curves import Curve, curve_over_seeds, plot_curves, read_curve
from tff_pfl.reports.histograms import Distribution, plot_histograms, read_distribution
from tff_pfl.reports.influence import plot_influence
from tff_pfl.reports.loss_surface import LossSurfaces, loss_surfaces_of_run, plot_loss_surfaces
from tff_pfl.reports.mixtures import plot_mixtures
from tff_pfl.reports.runs import named_runs
from tff_pfl.reports.subcommands import PICTURES, CommandLineError, Subcommand, run_subcommand
from tff_pfl.reports.words import in_words

__all__ = [
    "CommandLineError",
    "Curve",
    "Distribution",
    "LossSurfaces",
    "PICTURES",
    "Subcommand",
    "curve_over_seeds",
    "in_words",
    "loss_surfaces_of_run",
    "named_runs",
    "plot_curves",
    "plot_histograms",
    "plot_influence",
    "plot_loss_surfaces",
    "plot_mixtures",
    "read_curve",
    "read_distribution",
    "run_subcommand",
]

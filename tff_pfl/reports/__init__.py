"""Pictures, tables and pages of finished runs; `tff_pfl.experiment.RunFiles` reads their files."""

from tff_pfl.reports.against_bytes import BytesCurve, curve_against_bytes, plot_against_bytes
from tff_pfl.reports.against_epsilon import (
    PrivatePoint,
    plot_against_epsilon,
    points_against_epsilon,
)
from tff_pfl.reports.client_values import ClientValues, client_values
from tff_pfl.reports.columns import Column, default_columns, named_columns
from tff_pfl.reports.comparison import Comparison, RunResult, compared
from tff_pfl.reports.cross_table import RunValue, cross_table, cross_values
from tff_pfl.reports.curves import Curve, curve_over_seeds, plot_curves, read_curve
from tff_pfl.reports.histograms import Distribution, plot_histograms, read_distribution
from tff_pfl.reports.influence import plot_influence
from tff_pfl.reports.loss_surface import LossSurfaces, loss_surfaces_of_run, plot_loss_surfaces
from tff_pfl.reports.markup import Cell, Table, to_csv, to_html, to_latex, to_markdown
from tff_pfl.reports.mixtures import plot_mixtures
from tff_pfl.reports.page import write_page
from tff_pfl.reports.paired import PairedTest, paired_test
from tff_pfl.reports.runs import named_runs
from tff_pfl.reports.subcommands import PICTURES, CommandLineError, Subcommand, run_subcommand
from tff_pfl.reports.table import results_table
from tff_pfl.reports.timeline import Span, plot_timeline, spans_of_round
from tff_pfl.reports.words import in_words

__all__ = [
    "BytesCurve",
    "Cell",
    "ClientValues",
    "Column",
    "CommandLineError",
    "Comparison",
    "Curve",
    "Distribution",
    "LossSurfaces",
    "PICTURES",
    "PairedTest",
    "PrivatePoint",
    "RunResult",
    "RunValue",
    "Span",
    "Subcommand",
    "Table",
    "client_values",
    "compared",
    "cross_table",
    "cross_values",
    "curve_against_bytes",
    "curve_over_seeds",
    "default_columns",
    "in_words",
    "loss_surfaces_of_run",
    "named_columns",
    "named_runs",
    "paired_test",
    "plot_against_bytes",
    "plot_against_epsilon",
    "plot_curves",
    "plot_histograms",
    "plot_influence",
    "plot_loss_surfaces",
    "plot_mixtures",
    "plot_timeline",
    "points_against_epsilon",
    "read_curve",
    "read_distribution",
    "results_table",
    "run_subcommand",
    "spans_of_round",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
    "write_page",
]

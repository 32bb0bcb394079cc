"""Analyses runs and studies as pandas data frames, tables, figures and pages; also runs studies.

from tff_pfl import analysis

runs = analysis.read(["runs/quickstart", "tuned:runs/digits"])
analysis.plot_curves(runs.metrics, "global/local_test/loss")     # of a DataFrame: a figure
print(analysis.to_markdown(analysis.results_table(runs)))
"""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.analysis.comparison import Comparison as Comparison
    from tff_pfl.analysis.confusion import confusion_matrix as confusion_matrix
    from tff_pfl.analysis.confusion import plot_confusion_matrix as plot_confusion_matrix
    from tff_pfl.analysis.curves import curves_against_bytes as curves_against_bytes
    from tff_pfl.analysis.curves import over_seeds as over_seeds
    from tff_pfl.analysis.curves import plot_against_bytes as plot_against_bytes
    from tff_pfl.analysis.curves import plot_against_epsilon as plot_against_epsilon
    from tff_pfl.analysis.curves import plot_curves as plot_curves
    from tff_pfl.analysis.curves import points_against_epsilon as points_against_epsilon
    from tff_pfl.analysis.distributions import distribution_table as distribution_table
    from tff_pfl.analysis.distributions import plot_histograms as plot_histograms
    from tff_pfl.analysis.figures import save as save
    from tff_pfl.analysis.frames import column_of as column_of
    from tff_pfl.analysis.frames import select as select
    from tff_pfl.analysis.metric_text import in_words as in_words
    from tff_pfl.analysis.page import costs_to_target as costs_to_target
    from tff_pfl.analysis.page import target_table as target_table
    from tff_pfl.analysis.page import versions_tables as versions_tables
    from tff_pfl.analysis.page import write_page as write_page
    from tff_pfl.analysis.paired import PairedTest as PairedTest
    from tff_pfl.analysis.paired import against_local as against_local
    from tff_pfl.analysis.paired import client_values as client_values
    from tff_pfl.analysis.paired import holm as holm
    from tff_pfl.analysis.paired import paired_test as paired_test
    from tff_pfl.analysis.paired import plot_against_local as plot_against_local
    from tff_pfl.analysis.results import results_table as results_table
    from tff_pfl.analysis.runs import SEPARATOR as SEPARATOR
    from tff_pfl.analysis.runs import Runs as Runs
    from tff_pfl.analysis.runs import read as read
    from tff_pfl.analysis.tables import FORMATS as FORMATS
    from tff_pfl.analysis.tables import Table as Table
    from tff_pfl.analysis.tables import to_csv as to_csv
    from tff_pfl.analysis.tables import to_latex as to_latex
    from tff_pfl.analysis.tables import to_markdown as to_markdown
else:
    __getattr__, __dir__, __all__ = offer(__name__)

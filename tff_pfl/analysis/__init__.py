"""Analyses runs and studies as pandas data frames, tables, figures and pages; also runs studies.

from tff_pfl import analysis

runs = analysis.read(["runs/quickstart", "tuned:runs/digits"])
analysis.plot_curves(runs.metrics, "global/local_test/loss")     # of a DataFrame: a figure
print(analysis.to_markdown(analysis.results_table(runs)))
"""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "comparison": ("Comparison", "compare"),
        "confusion": ("confusion_matrix", "plot_confusion_matrix"),
        "curves": (
            "curves_against_bytes",
            "over_seeds",
            "plot_against_bytes",
            "plot_against_epsilon",
            "plot_curves",
            "points_against_epsilon",
        ),
        "distributions": ("distribution_table", "plot_histograms"),
        "figures": ("save",),
        "frames": ("column_of", "select"),
        "loss_surface": (
            "LossSurfaces",
            "loss_surfaces_of_run",
            "plot_loss_surfaces",
            "save_loss_surfaces",
        ),
        "page": ("costs_to_target", "target_table", "versions_tables", "write_page"),
        "paired": (
            "PairedTest",
            "against_local",
            "client_values",
            "paired_test",
            "plot_against_local",
        ),
        "results": ("results_table",),
        "runs": ("SEPARATOR", "Runs", "read"),
        "snapshots": ("plot_influence", "plot_mixtures", "plot_timeline"),
        "tables": ("FORMATS", "Table", "to_csv", "to_latex", "to_markdown"),
        "metric_text": ("in_words",),
    },
)

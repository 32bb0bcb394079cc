"""Studies: many runs of the training program, and the table that compares them."""

from tff_pfl.studies.runner import StudyError, run_study
from tff_pfl.studies.study import Run, Settings, Study, Tuning, Variant, load_study
from tff_pfl.studies.table import Row, markdown, read_rows, write_csv, write_scores
from tff_pfl.studies.trials import draws, grid, log_uniform, one_of, uniform
from tff_pfl.studies.tuning import Scores

__all__ = [
    "Row",
    "Run",
    "Scores",
    "Settings",
    "Study",
    "StudyError",
    "Tuning",
    "Variant",
    "draws",
    "grid",
    "load_study",
    "log_uniform",
    "markdown",
    "one_of",
    "read_rows",
    "run_study",
    "uniform",
    "write_csv",
    "write_scores",
]

"""Studies: many runs of the training program, and the table that compares them."""

from tff_pfl.studies.comparison import comparison_of, comparison_of_study
from tff_pfl.studies.runner import run_study
from tff_pfl.studies.search import Search
from tff_pfl.studies.settings import check_settings
from tff_pfl.studies.study import Run, Settings, Study, StudyError, Tuning, Variant, load_study
from tff_pfl.studies.table import write_csv, write_scores
from tff_pfl.studies.trials import draws, grid, log_uniform, one_of, uniform
from tff_pfl.studies.tuning import Scores

__all__ = [
    "Run",
    "Scores",
    "Search",
    "Settings",
    "Study",
    "StudyError",
    "Tuning",
    "Variant",
    "check_settings",
    "comparison_of",
    "comparison_of_study",
    "draws",
    "grid",
    "load_study",
    "log_uniform",
    "one_of",
    "run_study",
    "uniform",
    "write_csv",
    "write_scores",
]

"""Tunes two numbers of Ditto on handwritten digits: by a grid, by random draws and by Optuna."""

from tff_pfl.studies import Search, Study, Tuning, Variant, draws, grid, log_uniform

_VALUES = {
    "local.learning_rate": log_uniform(0.003, 1.0),
    "algorithm.lambda_": log_uniform(0.01, 10.0),
}
_GRID = grid(
    {
        "local.learning_rate": (0.01, 0.03, 0.1, 0.3),
        "algorithm.lambda_": (0.1, 0.3, 1.0),
    }
)


def get_study():
    """Returns a study of twelve trials each on validation data, then three seeds on test data."""
    trials = {
        "grid": _GRID,
        "draws": draws(_VALUES, 12),
        "search": Search(_VALUES, 12),
    }
    return Study(
        title="Ditto on digits, tuned by twelve trials",
        variants={
            label: Variant("configs/digits.py:ditto", trials=of) for label, of in trials.items()
        },
        seeds=(0, 1, 2),
        settings={"evaluation.every": 0},
        tuning=Tuning(_GRID, {"data.fractions": (0.65, 0.1, 0.25)}),
    )

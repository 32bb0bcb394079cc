"""Tests that reports follow what runs state about their quantities."""

import json

import numpy as np
import pandas as pd
import pytest

from tff_pfl.analysis.metric_text import best_of, in_short
from tff_pfl.analysis.paired import hurt_table
from tff_pfl.analysis.runs import Runs
from tff_pfl.arguments.quantities import Quantity
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.run_directory import OutputDirectoryError

SCORE = MetricName("personalized", "local_test", "score", "mean")
MORE, LESS = Quantity("score", 1), Quantity("score", -1)


def run_stating(path, *quantities):
    path.mkdir()
    if quantities:
        content = {quantity.name: quantity._asdict() for quantity in quantities}
        (path / "quantities.json").write_text(json.dumps(content))
    return path


def runs_of(**folders):
    return Runs("title", {label: [path] for label, path in folders.items()}, {}, "a")


def test_runs_state_their_quantities_and_opposite_ones_are_refused(tmp_path):
    less = run_stating(tmp_path / "less", LESS, Quantity("auc", 1, is_partial=True))
    unstated, more = run_stating(tmp_path / "unstated"), run_stating(tmp_path / "more", MORE)
    assert runs_of(a=unstated).quantities["score"] == MORE
    stated = runs_of(a=less, b=unstated).quantities
    assert (stated["score"], stated["auc"].is_partial) == (LESS, True)
    assert stated["accuracy"].is_share and stated["loss"].better == -1
    with pytest.raises(OutputDirectoryError, match="'score' is better in some of the runs"):
        _ = runs_of(a=less, b=more).quantities


def test_tables_follow_the_quantity():
    means = pd.Series({"a": 1.0, "b": 2.0, "c": np.nan})
    assert (best_of(MORE, means), best_of(LESS, means)) == ({"b"}, {"a"})
    worst = SCORE._replace(statistic="worst_5_percent")
    assert in_short(worst, LESS) == "personalized, score, top 5 %"
    assert in_short(worst) == "personalized, score, lowest 5 %"
    columns = {"label": "a", "seed": [0] * 4, "own": [1.0, 1, 1, 2], "local": [2.0, 2, 1, 1]}
    for quantity, row in (
        (LESS, ["25.0 %", "50.0 %", "+0.25"]),
        (MORE, ["50.0 %", "25.0 %", "-0.25"]),
    ):
        table = hurt_table(pd.DataFrame(columns), quantity)
        assert table.frame.iloc[0, 1:].tolist() == [*row, "-", "-"]
    columns["own"][3] = np.nan  # a diverged model
    assert hurt_table(pd.DataFrame(columns), MORE).frame["hurt"].tolist() == ["75.0 %"]

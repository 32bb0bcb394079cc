"""Tests that reports follow what the metrics of runs state about themselves."""

import json

import numpy as np
import pandas as pd
import pytest

from tff_pfl.analysis.distributions import tails
from tff_pfl.analysis.metric_text import best_of, in_short
from tff_pfl.analysis.paired import hurt_table
from tff_pfl.analysis.runs import Runs
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.run_directory import OutputDirectoryError

SCORE = MetricName("personalized", "local_test", "score", "mean")


def run_stating(path, directions):
    path.mkdir()
    if directions:
        (path / "directions.json").write_text(json.dumps(directions))
    return path


def runs_of(**folders):
    return Runs("title", {label: [path] for label, path in folders.items()}, {}, "a")


def test_tables_follow_stated_directions_and_refuse_opposite_ones(tmp_path):
    stated = run_stating(tmp_path / "stated", {"score": -1})
    unstated = run_stating(tmp_path / "unstated", {})
    values = {"a": np.array([1.0]), "b": np.array([2.0])}
    assert best_of(SCORE, values, runs_of(a=unstated).directions) == {"b"}
    assert best_of(SCORE, values, runs_of(a=stated, b=unstated).directions) == {"a"}
    opposite = run_stating(tmp_path / "opposite", {"score": 1})
    with pytest.raises(OutputDirectoryError, match="'score' is better in some of the runs"):
        _ = runs_of(a=stated, b=opposite).directions


def test_tails_and_hurt_clients_follow_stated_directions():
    stated = {"score": -1}
    values = np.array([1.0, 2.0, np.nan])
    assert tails(values, "score", stated)["lowest 5 %"] == 1.0
    assert np.isnan(tails(values, "score")["lowest 5 %"])
    worst = SCORE._replace(statistic="worst_5_percent")
    assert in_short(worst, stated) == "personalized, score, top 5 %"
    assert in_short(worst) == "personalized, score, lowest 5 %"
    columns = {"label": "a", "seed": [0] * 4, "own": [1.0, 1, 1, 2], "local": [2.0, 2, 1, 1]}
    for directions, row in (
        (stated, ["25.0 %", "50.0 %", "+0.25"]),
        ({}, ["50.0 %", "25.0 %", "-0.25"]),
    ):
        table = hurt_table(pd.DataFrame(columns), "score", directions)
        assert table.frame.iloc[0, 1:].tolist() == [*row, "-", "-"]
    columns["own"][3] = np.nan  # a diverged model
    assert hurt_table(pd.DataFrame(columns), "score").frame["hurt"].tolist() == ["75.0 %"]

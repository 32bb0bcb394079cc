"""Tests evaluations of a tiny run in Python and by the program."""

import json

import numpy as np
import pytest

from tests.experiment.killed import contents_of, rows_of
from tests.permissions import read_only
from tests.runs import with_settings
from tff_pfl.config import evaluate_program, run_of
from tff_pfl.evaluation import MARGIN, MetricName, mean_margin, sampled_clients, to_text
from tff_pfl.experiment import RunFiles

MODELS = ("personalized", "global")


@pytest.fixture(scope="module")
def run(finished_run):
    """Returns the directory of a finished run of two rounds."""
    return finished_run()


@pytest.mark.thorough
def test_evaluation_repeats_the_numbers_of_the_run_and_adds_other_clients(run):
    before = contents_of(run)
    with read_only(run):  # such as another user's directory or an archive
        found = run_of(run).evaluate(generalization="last", synthetic=(0.0, 0.5))
    assert (found.run, found.final.round_num) == ("ditto on digits", 2)
    assert found.options.items() >= {"split": "test", "synthetic": (0.0, 0.5)}.items()
    metrics = to_text(found.final.metrics)
    final = json.loads((run / "summary.json").read_text())["final"]["metrics"]
    measured = {name: value for name, value in final.items() if "/" in name}
    of_run = {name: value for name, value in metrics.items() if "local_test" in name}
    assert of_run == pytest.approx(measured, rel=1e-6)
    for model in MODELS:
        for metric in ("loss", "accuracy"):
            mean = metrics[f"{model}/generalization_test/{metric}_mean"]
            assert np.isfinite(mean)
            assert mean != metrics[f"{model}/local_test/{metric}_mean"]
            assert f"{model}/synthetic50_test/{metric}_mean" in metrics
    assert contents_of(run) == before


@pytest.fixture(scope="module")
def local(finished_run):
    """Returns the directory of a finished run of local training with the same clients."""
    return finished_run("local")


@pytest.fixture(scope="module")
def one_round(finished_run):
    """Returns the directory of a run of one round, in which two of four clients report."""
    return finished_run("local", rounds=1, participation={"over_selection": 1.5})


@pytest.mark.thorough
def test_statistics_cover_participants_and_never_selected_clients(one_round, tmp_path, capsys):
    before = contents_of(one_round)
    output = tmp_path / "result"
    assert evaluate_program(str(one_round), str(output)) == 0
    result = json.loads(output.with_suffix(".json").read_text())
    clients = rows_of(tmp_path, "result.csv")
    selected = [client["was_selected"] for client in clients]
    of_run = rows_of(one_round, "clients/round_000001.csv")
    assert selected == [client["was_selected"] for client in of_run]
    assert sorted(selected) == list("0011")
    assert RunFiles(one_round).metrics["participation/num_surplus"].tolist() == [1]
    name, groups = "personalized/local_test/accuracy", result["distributions"]
    for group, members in {"all": "01", "participants": "1", "never_selected": "0"}.items():
        values = [float(client[name]) for client in clients if client["was_selected"] in members]
        assert groups[group][name]["num_clients"] == len(values)
        assert groups[group][name]["mean"] == pytest.approx(np.mean(values))
    lines = capsys.readouterr().out.splitlines()
    assert not any("gain" in line for line in lines)
    table = lines[lines.index(f"over clients: {name}") :]
    rows = [row.split() for row in table[2:5]]
    heads = [["all", "4"], ["took", "part", "2"], ["never", "took", "part", "2"]]
    assert [row[:-5] for row in rows] == heads
    assert [row[-5] for row in rows] == [f"{its[name]['mean']:.4f}" for its in groups.values()]
    written = rows_of(tmp_path, "result_table.csv")
    assert len(written) == sum(map(len, groups.values()))
    for row in written:
        found = groups[row["group"]][f"{row['model']}/{row['pool']}/{row['quantity']}"]
        deciles = found.pop("deciles")
        assert [float(row[f"decile_{tenths}"]) for tenths in range(1, 10)] == deciles
        assert {key: float(row[key]) for key in found} == found
    assert contents_of(one_round) == before


@pytest.mark.thorough
def test_gains_are_computed_over_local_training(run, local, tmp_path, capsys):
    output = tmp_path / "result"
    assert evaluate_program(str(run), str(output), baseline=str(local)) == 0
    own = MetricName("personalized", "local_test", "accuracy")
    clients, of_local = (run_of(its).evaluate().clients.values[own] for its in (run, local))
    gain = clients - of_local
    written = [float(client[f"{own}_gain"]) for client in rows_of(tmp_path, "result.csv")]
    np.testing.assert_allclose(written, gain, atol=1e-12)
    baseline = json.loads(output.with_suffix(".json").read_text())["baseline"]
    assert (baseline["run"], baseline["round_num"]) == ("local on digits", 2)
    assert baseline["gains"]["all"][str(own)]["mean"] == pytest.approx(gain.mean(), abs=1e-12)
    lines = capsys.readouterr().out.splitlines()
    assert "gains are over round 2 of local on digits" in lines
    table = lines[lines.index(f"over clients: {own}") :]
    assert table[1].split()[-4:] == ["mean", "gain", "share", "hurt"]
    assert table[2].split()[-2:] == [f"{gain.mean():.4f}", f"{np.mean(gain < 0):.4f}"]


@pytest.mark.thorough
def test_further_models_are_those_of_the_run_and_not_of_its_baseline(run, tmp_path):
    change = {"fine_tune_epochs": 3, "further_models": ["locally_trained", "fine_tuned"]}
    with_settings(lambda settings: settings["evaluation"].update(change))(run, tmp_path / "tuned")
    tuned, plain = run_of(tmp_path / "tuned"), run_of(run).evaluate()
    found = tuned.evaluate(baseline=tuned)
    values, plain_values = found.clients.values, plain.clients.values
    for name, column in plain_values.items():
        np.testing.assert_array_equal(values[name], column)
    loss = MetricName("personalized", "local_test", "loss")
    assert found.gains()["all"][loss] == (4, 0.0, 0.0, 0.0)
    assert np.all(values[loss._replace(model="fine_tuned")] < values[loss])
    trained = values[loss._replace(model="locally_trained")]
    for model in MODELS:
        assert np.all(trained != values[loss._replace(model=model)])
    options = {"fine_tune_epochs": 0, "further_models": ()}
    changed = tuned.evaluate(**options)
    assert changed.clients.values.keys() == plain_values.keys()
    assert options.items() <= changed.options.items()


def test_baseline_with_other_clients_is_refused(run, tmp_path, capsys):
    with_settings(lambda settings: settings.update(seed=1))(run, tmp_path / "other")
    output = tmp_path / "x"
    assert evaluate_program(str(run), str(output), baseline=str(tmp_path / "other")) == 1
    assert "has other data than" in capsys.readouterr().err
    assert not output.with_suffix(".json").exists()


@pytest.mark.thorough
def test_sample_of_clients_has_a_margin(run, local, tmp_path, capsys):
    output, name = tmp_path / "result", MetricName("personalized", "local_test", "accuracy")
    assert evaluate_program(str(run), str(output), baseline=str(local), clients=3) == 0
    lines = capsys.readouterr().out.splitlines()
    clients = rows_of(tmp_path, "result.csv")
    of_all = run_of(run).evaluate()
    ids = [int(client["client_id"]) for client in clients]
    assert len(ids) == 3
    accuracies = of_all.clients.values[name][ids]
    assert [float(client[str(name)]) for client in clients] == pytest.approx(accuracies)
    assert [int(client["was_selected"]) for client in clients] == of_all.was_selected[ids].tolist()
    assert all(f"{name}_gain" in client for client in clients)
    metrics = json.loads(output.with_suffix(".json").read_text())["metrics"]
    margin = metrics[f"{name}_mean_margin"]
    assert margin == pytest.approx(mean_margin(accuracies, 4)) and margin > 0
    (line,) = [line for line in lines if line.startswith(f"  {name}  ")]
    assert line.split()[1:3] == [f"{accuracies.mean():.4f}", f"{margin:.4f}"]
    assert not any(metric.statistic == MARGIN for metric in of_all.final.metrics)


def test_run_evaluates_the_same_sample_in_all_rounds(finished_run):
    run_dir = finished_run(evaluation={"every": 1, "clients": 2})
    name = MetricName("personalized", "local_test", "accuracy")
    files = RunFiles(run_dir)
    for round_num, mean in zip((1, 2), files.metrics[f"{name}_mean"], strict=True):
        columns = files.clients(round_num).numbers
        assert columns["client_id"].tolist() == sampled_clients(0, 4, 2).tolist()
        assert mean == pytest.approx(columns[str(name)].mean())

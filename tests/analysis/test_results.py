"""Tests the tables of hand-written runs."""

import math
import re

import pandas as pd
import pytest

from tests.analysis.hand_written import write_run
from tff_pfl import analysis
from tff_pfl.analysis.page import costs_to_target, default_target, target_table, versions_tables
from tff_pfl.analysis.tables import Table, table_of, to_csv, to_latex, to_markdown
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.evaluation import MARGIN, MetricName
from tff_pfl.experiment import OutputDirectoryError, RunDirectory, read_summary, write_summary

ACCURACY = "personalized/local_test/accuracy"
LOSS = "personalized/local_test/loss"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root, folders = tmp_path_factory.mktemp("runs"), {}
    for label, values, options in (
        ("A & B", [(0.5, 1.0), (0.5, 0.75), (0.75, 1.0)], {"global_accuracies": [0.25, 0.75]}),
        ("Local_1", [(0.5, 0.5), (0.5, 0.5), (0.5, 0.75)], {"seconds": 0.25, "bytes_down": 0}),
    ):
        folders[label] = [
            write_run(root / label / str(seed), accuracies, seed=seed, **options)
            for seed, accuracies in enumerate(values)
        ]
    folders["going on"] = [write_run(root / "going on", [1.0, 1.0], finished=False)]
    return folders


def results_table(folders, *columns, **options):
    return analysis.results_table(analysis.read(folders), *columns, **options)


def rows(table):
    return table.frame.values.tolist()


def test_table_has_means_deviations_and_costs(runs):
    table = results_table(runs)
    assert table.frame.columns.tolist() == [
        *("method", "personalized (%)", "global (%)", "seeds", "kB down", "kB up"),
        "seconds a round, relative",
    ]
    assert rows(table) == [
        ["A & B", "75.00 ± 12.50", "50.00 ± 0.00", "3", "1.0", "2.0", "1.00"],
        ["Local_1", "54.17 ± 7.22", "-", "3", "0.0", "0.0", "0.50"],
        ["going on", "-", "-", "0 of 1", "-", "-", "-"],
    ]
    assert table.bold == {(0, 1)}  # a single label is never bold
    assert "accuracy of each client's own model on its own test examples" in table.notes[0]


@pytest.mark.thorough
def test_table_has_named_columns(runs):
    columns = [f"{ACCURACY}_worst_5_percent", LOSS, f"{ACCURACY}_std", f"late_mean:{ACCURACY}"]
    table = results_table(runs, columns)
    assert table.frame.columns.tolist()[1:5] == [
        "personalized, lowest 5 % (%)",
        "personalized, loss",
        "personalized, standard deviation (%)",
        "personalized, late mean (%)",
    ]
    assert rows(table)[1][1:4] == ["50.00 ± 0.00", "0.458 ± 0.0722", "4.17 ± 7.22"]
    assert rows(table)[0][4] == "56.25 ± 9.38"  # the first evaluation has half the accuracies
    # The lowest loss is the best. A standard deviation is never bold.
    assert table.bold == {(0, 1), (0, 2), (0, 4)}
    assert "mean of the late evaluations of a run." in table.notes[3]
    notes = " ".join(results_table(runs, ["best_on_test:loss"]).notes)
    assert "The best evaluation on test examples is chosen by the accuracy of each" in notes
    short = results_table(runs, ["accuracy_worst_5_percent", "loss", "late_mean:accuracy"])
    assert rows(short)[1][1:4] == [*rows(table)[1][1:3], rows(table)[1][4]]
    with pytest.raises(UnknownNameError, match="Unknown evaluation 'best_test'"):
        results_table(runs, [f"best_test:{LOSS}"])


@pytest.mark.thorough
def test_labels_are_tested_against_one_label(runs):
    table = results_table(runs, against="Local_1")
    heads = ["personalized, minus Local_1's", "95 % interval", "p", "clients worse"]
    assert table.frame.columns.tolist()[3:8] == [*heads, "clients better"]
    # The differences of the seeds are 0.25, 0.125 and 0.25.
    assert rows(table)[0][3:8] == ["+20.83", "+2.91 to +38.76", "0.038", "0 %", "67 %"]
    assert rows(table)[1][3:8] == rows(table)[2][3:8] == ["-"] * 5
    assert any("t test" in note for note in table.notes)
    late = rows(results_table(runs, [f"late_mean:{ACCURACY}"], against="Local_1"))
    assert late[0][2] == "+15.62"
    without = results_table(runs, ["global/local_test/accuracy"], against="Local_1")
    assert [row[2:7] for row in rows(without)] == [["-"] * 5] * 3
    assert rows(results_table(runs, [LOSS], against="Local_1"))[0][2] == "-0.208"
    with pytest.raises(UnknownNameError, match="Unknown label with finished runs 'Local'"):
        results_table(runs, against="Local")
    for columns in ([], [f"{ACCURACY}_worst_5_percent"]):
        with pytest.raises(OutputDirectoryError, match="first column, which must be a mean"):
            results_table(runs, columns, against="Local_1")


def test_several_differences_have_corrected_p_values(runs):
    both = {"B": runs["A & B"], "C": runs["A & B"], "Local_1": runs["Local_1"]}
    frame = results_table(both, against="Local_1").frame
    assert frame["p"].tolist() == ["0.038", "0.038", "-"]
    assert frame["Holm's p"].tolist() == ["0.075", "0.075", "-"]


def test_differences_use_common_seeds(runs):
    fewer = {"A": runs["A & B"][1:], "B": runs["Local_1"][:2]}
    table = results_table(fewer, against="B")
    found = [note for note in table.notes if "Differences" in note]
    assert found == ["Differences between A and B use the seeds that both have: 1."]
    assert table.frame["personalized, minus B's"].tolist() == ["+12.50", "-"]
    none = {"A": runs["A & B"][2:], "B": runs["Local_1"][:2]}
    assert "both have: none." in " ".join(results_table(none, against="B").notes)


def test_note_reports_a_sample_of_the_clients(tmp_path):
    runs = {"A": [write_run(tmp_path / "run", [0.5])]}
    assert "sample" not in " ".join(results_table(runs).notes)
    result = read_summary(tmp_path / "run")
    margin = MetricName.parse(f"{ACCURACY}_mean")._replace(statistic=MARGIN)
    final = result.final._replace(metrics={**result.final.metrics, margin: 0.1})
    write_summary(RunDirectory(tmp_path / "run", overwrite=True), result._replace(final=final))
    assert "For A, only a sample of the clients was evaluated." in results_table(runs).notes


@pytest.mark.filterwarnings("error")
def test_diverged_models_cause_no_warnings(tmp_path):
    """Uses losses that are 1 minus the accuracies."""
    values = {"a": [(0.5, -math.inf), (0.5, 1.0)], "b": [(-math.inf, 0.5), (-math.inf, 1.0)]}
    runs = {
        label: [write_run(tmp_path / f"{label}{i}", own, seed=i) for i, own in enumerate(of_seeds)]
        for label, of_seeds in values.items()
    }
    table = results_table(runs, [LOSS], against="b")
    assert [row[1:3] for row in rows(table)] == [["nan ± nan", "+nan"], ["-", "-"]]
    assert not table.bold


def test_differing_settings_of_one_label_are_found(tmp_path):
    """Finds an edited config between finished runs of a study."""
    runs = []
    for seed, rate, folder in ((0, 0.1, "/a"), (1, 0.1, "/b"), (2, 0.01, "/a")):
        settings = {"local": {"learning_rate": rate, "epochs": 5}, "data": {"data_dir": folder}}
        settings["fingerprints"] = {"data": f"data of {seed}"}
        runs.append(write_run(tmp_path / str(seed), [0.5, 1.0], seed=seed, **settings))
    older = write_run(tmp_path / "older", [0.5, 1.0], seed=3)

    def differing(*runs):
        notes = " ".join(results_table({"A": runs}).notes)
        return re.findall(r"The runs of A differ in more than the seed: in (.*?)\. kB", notes)

    assert differing(*runs[:2], older) == []
    assert differing(*runs) == ["local.learning_rate"]
    for seed, (run, code) in enumerate(zip(runs[:2], ("0a1b", "2c3d"), strict=True)):
        sessions = [(0, {"code of my_methods": code, "commit": code})]
        write_run(run, [0.5, 1.0], seed=seed, sessions=sessions)
    assert differing(*runs[:2], older) == []
    assert differing(*runs[:2]) == ["code of my_methods"]


def test_costs_to_a_target_are_counted(runs, tmp_path):
    """Uses accuracies of A & B of 75, 62.5 and 87.5 %, and half of that after five rounds."""
    runs = analysis.read(runs)
    assert default_target(runs) == pytest.approx(0.95 * 0.75)
    costs = costs_to_target(runs, 0.4)[["rounds", "megabytes", "seconds"]].values.tolist()
    assert costs[0] == [10, 0.03, 22.0] and costs[2] == [5, 0.015, 19.5]
    assert costs[4] == [10, 0.0, 20.0]  # nothing is sent
    assert rows(target_table(runs, 0.7)) == [
        ["A & B", "2 of 3", "10.0", "0.03", "22.0"],
        ["Local_1", "0 of 3", "-", "-", "-"],
    ]
    said = "All runs reach it by their first evaluation"
    assert said in target_table(runs, 0.1).notes[-1]
    assert said not in target_table(runs, 0.4).notes[-1]
    exact = write_run(tmp_path / "run", [0.1 + 0.2] * 3)
    rounding = costs_to_target(analysis.read(exact), 0.3)  # its error does not count
    assert rounding["rounds"].tolist() == [10]
    head, *lines = (exact / "timings.csv").read_text().splitlines()
    (exact / "timings.csv").write_text("\n".join([head, lines[-1], ""]))
    costs = costs_to_target(analysis.read(exact), 0.1)  # after round 5, without its seconds
    assert costs["rounds"].tolist() == [5] and costs["seconds"].isna().all()


def test_versions_are_split_into_shared_and_different(tmp_path):
    commit = "0123456789abcdef"
    a = write_run(tmp_path / "a", [0.5], sessions=[(0, {"python": "3.11", "commit": commit})])
    parts = [(0, {"python": "3.11", "devices": ["x", "y"]}), (4, {"python": "3.12"})]
    b = write_run(tmp_path / "b", [0.5], seed=1, sessions=parts)
    (same,) = versions_tables(analysis.read({"A": [a]}))
    assert rows(same) == [["python", "3.11"], ["commit", "0123456789ab"]]
    common, different = versions_tables(analysis.read({"A": [a, b]}))
    assert rows(common) == []
    parts = ["A, seed 0", "A, seed 1", "A, seed 1, after round 4"]
    assert different.frame.columns.tolist() == ["key", *parts]
    assert rows(different) == [
        ["python", "3.11", "3.11", "3.12"],
        ["commit", "0123456789ab", "-", "-"],
        ["devices", "-", "x, y", "-"],
    ]


TABLE = Table(
    pd.DataFrame([["50 % & <more>_", "-1.0 ± 0.5"], ["a|b, t-1", "-"]], columns=["a_b", "x (%)"]),
    ["In 5 %."],
    frozenset({(0, 1)}),
)


def test_tables_have_three_formats():
    assert to_markdown(TABLE).splitlines() == [
        "| a_b | x (%) |",
        "|---|---:|",
        r"| 50 % & \<more\>\_ | **-1.0 ± 0.5** |",
        r"| a\|b, t-1 | - |",
        "",
        "In 5 %.",
    ]
    assert to_latex(TABLE).splitlines() == [
        "% In 5 %.",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\_b & x (\%) \\",
        r"\midrule",
        r"50 \% \& <more>\_ & \textbf{-1.0 ± 0.5} \\",
        r"a|b, t-1 & - \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert to_csv(TABLE) == 'a_b,x (%)\n50 % & <more>_,-1.0 ± 0.5\n"a|b, t-1",-'


def test_missing_cells_are_dashes():
    table = table_of([{"a": "x"}, {"a": "y", "b": "1"}], best={"b": {"y"}})
    assert rows(table) == [["x", "-"], ["y", "1"]] and table.bold == {(1, 1)}


def test_runs_of_different_data_or_tasks_are_not_comparable(tmp_path):
    folders = {
        name: [write_run(tmp_path / name, [0.5, 0.6], data={"name": name}, task={"name": "binary"})]
        for name in ("digits", "cifar10")
    }
    notes = " ".join(results_table(folders).notes)
    assert "differ in data.name: digits, cifar10. Their numbers cannot be compared." in notes
    assert "task.name" not in notes

"""Tables of runs that are written by hand."""

import dataclasses
import json
import math

import pytest

from tests.reports.hand_written import write_run
from tests.runs import config_of_flags
from tff_pfl.evaluation import MARGIN, MetricName
from tff_pfl.experiment import OutputDirectoryError, resolved
from tff_pfl.names import UnknownNameError
from tff_pfl.reports import (
    Cell,
    Column,
    Table,
    compared,
    named_columns,
    plot_histograms,
    results_table,
    to_html,
    to_latex,
    to_markdown,
)
from tff_pfl.reports.paper import paper_value

ACCURACY = "personalized/local_test/accuracy"


@pytest.fixture
def comparison(tmp_path):
    runs = {}
    for label, values, options in (
        ("A & B", [(0.5, 1.0), (0.5, 0.75), (0.75, 1.0)], {"global_accuracies": [0.25, 0.75]}),
        ("Local_1", [(0.5, 0.5), (0.5, 0.5), (0.5, 0.75)], {"seconds": 0.25, "bytes_down": 0}),
    ):
        runs[label] = [tmp_path / label / str(seed) for seed in range(3)]
        for seed, (run_dir, accuracies) in enumerate(zip(runs[label], values, strict=True)):
            write_run(run_dir, accuracies, seed=seed, **options)
    write_run(tmp_path / "going on", [1.0, 1.0], finished=False)
    runs["going on"] = [tmp_path / "going on", tmp_path / "not begun"]
    return compared("Three", runs)


def rows(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_means_deviations_and_costs(comparison):
    table = results_table(comparison)
    assert table.heads == [
        *("method", "personalized (%)", "global (%)", "seeds", "kB down", "kB up"),
        "seconds a round, relative",
    ]
    assert rows(table) == [
        ["A & B", "75.00 ± 12.50", "50.00 ± 0.00", "3", "1.0", "2.0", "1.00"],
        ["Local_1", "54.17 ± 7.22", "-", "3", "0.0", "0.0", "0.50"],
        ["going on", "-", "-", "0 of 2", "-", "-", "-"],
    ]
    bold = [[i for i, cell in enumerate(row) if cell.bold] for row in table.rows]
    assert bold == [[1], [], []]  # no best of one
    assert "accuracy of each client's own model on its own test examples" in table.notes[0]


def test_runs_of_one_name_that_are_no_repetitions_are_told_of(tmp_path):
    """As after a config file was edited, of which a study's finished runs know nothing."""
    runs = []
    for seed, rate, folder in ((0, 0.1, "/a"), (1, 0.1, "/b"), (2, 0.01, "/a")):
        settings = {"local": {"learning_rate": rate, "epochs": 5}, "data": {"data_dir": folder}}
        runs.append(write_run(tmp_path / str(seed), [0.5, 1.0], seed=seed, **settings))
    write_run(tmp_path / "older", [0.5, 1.0], seed=3)

    def told(*run_dirs):
        notes = results_table(compared("t", {"A": run_dirs})).notes
        return [note for note in notes if "differ" in note]

    assert told(*runs[:2], tmp_path / "older") == []
    assert told(*runs) == ["The runs of A differ in more than the seed: in local.learning_rate."]
    for run, code in zip(runs[:2], ("0a1b", "2c3d"), strict=True):
        session = {"rounds_before": 0, "versions": {"code of my_methods": code, "commit": code}}
        (run / "versions.json").write_text(json.dumps({"sessions": [session]}))
    assert told(*runs[:2], tmp_path / "older") == []
    assert told(*runs[:2]) == ["The runs of A differ in more than the seed: in code of my_methods."]


def test_other_columns(comparison):
    loss = "personalized/local_test/loss"
    columns = named_columns(comparison, [f"{ACCURACY}_worst_5_percent", loss, f"{ACCURACY}_std"])
    table = results_table(comparison, columns)
    assert table.heads[1:4] == [
        "personalized, lowest 5 % (%)",
        "personalized, loss",
        "personalized, standard deviation (%)",
    ]
    assert rows(table)[1][1:4] == ["50.00 ± 0.00", "0.458 ± 0.0722", "4.17 ± 7.22"]
    # The lowest loss is the best; of a spread there is none.
    assert [[cell.bold for cell in row[1:4]] for row in table.rows[:2]] == [
        [True, True, False],
        [False, False, False],
    ]
    with pytest.raises(UnknownNameError, match=f"Did you mean '{ACCURACY}"):
        named_columns(comparison, ["personal/local_test/accuracy"])


def test_columns_of_other_evaluations(comparison):
    """Runs have half of their accuracies at the first evaluation of two."""
    named = named_columns(comparison, [f"late_mean:{ACCURACY}", f"best_on_test:{ACCURACY}"])
    table = results_table(comparison, named, against="Local_1")
    heads = ["personalized, late mean (%)", "personalized, best on test (%)"]
    assert table.heads[1:4] == [*heads, "personalized, late mean, less Local_1's"]
    assert rows(table)[0][1:4] == ["56.25 ± 9.38", "75.00 ± 12.50", "+15.62"]
    assert "examples, which is chosen on what it reports." in table.notes[1]
    with pytest.raises(UnknownNameError, match=f"Did you mean 'best_on_test:{ACCURACY}"):
        named_columns(comparison, [f"best_on_validation:{ACCURACY}"])


def test_nothing_is_finished(tmp_path):
    table = results_table(compared("t", {"a": [tmp_path / "a"], "b": [tmp_path / "b"]}))
    assert rows(table) == [[label, "0 of 1", "-", "-", "-"] for label in ("a", "b")]


def test_against_a_variant(comparison):
    table = results_table(comparison, against="Local_1")
    assert table.heads[3:7] == [
        "personalized, less Local_1's",
        "95 % interval",
        "p",
        "clients worse",
    ]
    # Of the seeds 0.25, 0.125 and 0.25.
    assert rows(table)[0][3:7] == ["+20.83", "+2.91 to +38.76", "0.038", "0 %"]
    assert rows(table)[1][3:7] == rows(table)[2][3:7] == ["-"] * 4
    assert any("t test" in note for note in table.notes)
    of_global = named_columns(comparison, ["global/local_test/accuracy"])
    table = results_table(comparison, of_global, against="Local_1")  # which has no global model
    assert [row[2:6] for row in rows(table)] == [["-"] * 4] * 3
    of_loss = named_columns(comparison, ["personalized/local_test/loss"])
    found = rows(results_table(comparison, of_loss, against="Local_1"))[0][2]
    assert found == "-0.208"  # three digits, not two decimals
    with pytest.raises(UnknownNameError, match="Did you mean 'Local_1'"):
        results_table(comparison, against="Local")
    for columns in ([], named_columns(comparison, [f"{ACCURACY}_worst_5_percent"])):
        with pytest.raises(OutputDirectoryError, match="first column, which must be a mean"):
            results_table(comparison, columns, against="Local_1")
    new = Column(MetricName("fine_tuned", "new_clients_test", "accuracy", "mean"))
    with pytest.raises(OutputDirectoryError, match="but not those that took no part in training"):
        results_table(comparison, [new], against="Local_1")


def test_which_means_are_of_a_sample(comparison):
    run = comparison.results["Local_1"][0]
    sampled = dict(run.final.metrics) | {MetricName("global", "local_test", "loss", MARGIN): 0.1}
    run = run._replace(evaluations={"final": run.final._replace(metrics=sampled)})
    found = dataclasses.replace(comparison, results={**comparison.results, "Local_1": [run]})
    note = "Of Local_1, a sample of the clients was evaluated."
    assert note in results_table(found).notes
    assert note not in results_table(comparison).notes


@pytest.mark.filterwarnings("error")
def test_models_that_have_diverged_are_no_warnings(tmp_path):
    """Losses are 1 less the accuracies."""
    values = {"a": [(0.5, -math.inf), (0.5, 1.0)], "b": [(-math.inf, 0.5), (-math.inf, 1.0)]}
    runs = {
        label: [write_run(tmp_path / f"{label}{i}", own, seed=i) for i, own in enumerate(of_seeds)]
        for label, of_seeds in values.items()
    }
    comparison = compared("Diverged", runs)
    loss = "personalized/local_test/loss"
    table = results_table(comparison, named_columns(comparison, [loss]), against="b")
    assert [row[1:3] for row in rows(table)] == [["nan ± nan", "+nan"], ["-", "-"]]
    plot_histograms(runs, loss, tmp_path / "picture.png")


def test_the_difference_to_the_paper(tmp_path):
    write_run(tmp_path / "a", [0.5, 1.0], paper={"personalized_accuracy_percent": 74.0})
    write_run(tmp_path / "b", [0.5, 0.5])
    table = results_table(compared("t", {"a": [tmp_path / "a"], "b": [tmp_path / "b"]}))
    assert table.heads[2] == "personalized, less the paper's"
    assert [row[:3] for row in rows(table)] == [["a", "75.00", "+1.00"], ["b", "50.00", "-"]]


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        ("fedpg.py:dir,fmnist,fedpg", "personalized/local_test/accuracy_mean", 0.889),
        ("fedpg.py:dir,fmnist,fedpg", "personalized/synthetic50_test/accuracy_mean", 0.879),
        ("fedpg.py:dir,fmnist,fedpg", "personalized/generalization_test/accuracy_mean", 0.895),
        ("fedpg.py:dir,fmnist,fedpg", "global/generalization_test/accuracy_mean", 0.885),
        ("fedpg.py:dir,fmnist,fedpg", "personalized/local_test/accuracy_std", None),
        ("fedpg.py:dir,fmnist,fedpg", "global/local_test/accuracy_mean", None),
        ("fedpg.py:dir,fmnist,fedpg", "personalized/synthetic10_test/accuracy_mean", None),
        ("plgu.py:cifar10,10,fedavg", "global/local_test/accuracy_mean", 0.6479),
        ("plgu.py:cifar10,10,fedavg", "global/local_test/accuracy_worst_5_percent", 0.6069),
        ("plgu.py:cifar10,10,fedavg", "personalized/local_test/loss_mean", None),
        ("digits.py:fedavg", "personalized/local_test/accuracy_mean", None),
    ],
)
def test_numbers_of_papers(config, name, value, monkeypatch):
    paper = resolved(config_of_flags(monkeypatch, f"--config=configs/{config}"))["paper"]
    found = paper_value(paper, MetricName.parse(name))
    assert found is None if value is None else found == pytest.approx(value)


def test_other_keys_of_papers():
    own = MetricName("personalized", "local_test", "accuracy", "mean")
    assert paper_value({"accuracy_percent": 80.0}, own) == pytest.approx(0.8)
    assert paper_value({"accuracy_percent": 80.0}, own._replace(model="global")) is None
    assert paper_value({"personalized_accuracy_percent": 70.0}, own) == pytest.approx(0.7)


TABLE = Table(
    ["a_b", "x (%)"],
    [
        [Cell("50 % & <more>_"), Cell("-1.0 ± 0.5", bold=True)],
        [Cell("a|b, t-1"), Cell("-")],
        [Cell("[0.1] own"), Cell("1")],
    ],
    ["In 5 %."],
)


def test_markdown():
    assert to_markdown(TABLE).splitlines() == [
        "| a_b | x (%) |",
        "|---|---:|",
        r"| 50 % & \<more\>\_ | **-1.0 ± 0.5** |",
        r"| a\|b, t-1 | - |",
        "| [0.1] own | 1 |",
        "",
        "In 5 %.",
    ]


def test_latex():
    assert to_latex(TABLE).splitlines() == [
        "% In 5 %.",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\_b & x (\%) \\",
        r"\midrule",
        r"50 \% \& \textless{}more\textgreater{}\_ & \textbf{$-$1.0 $\pm$ 0.5} \\",
        r"a\textbar{}b, t-1 & - \\",
        r"{}[0.1] own & 1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_html():
    text = to_html(TABLE)
    assert '<th scope="row">50 % &amp; &lt;more&gt;_</th>' in text
    assert "<td><strong>-1.0 ± 0.5</strong></td>" in text
    assert "<p>In 5 %.</p>" in text


@pytest.mark.parametrize(
    ("seeds", "common"), [((0, 1), None), ((1, 2), "1."), ((0, 1, 2), "0, 1."), ((5, 6), "none.")]
)
def test_differences_are_of_common_seeds(tmp_path, seeds, common):
    runs = {}
    for label, own in (("A", seeds), ("B", (0, 1))):
        runs[label] = [
            write_run(tmp_path / label / str(seed), [0.5, 1.0], seed=seed) for seed in own
        ]
    notes = results_table(compared("t", runs), against="B").notes
    told = [note for note in notes if note.startswith("Differences between")]
    expected = f"Differences between A and B are of the seeds that both have: {common}"
    assert told == ([expected] if common else [])

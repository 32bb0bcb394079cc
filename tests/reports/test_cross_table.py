"""Cross tables of runs that are written by hand, with attackers and without them."""

import pytest

from tests.reports.hand_written import write_run
from tests.runs import run_main
from tff_pfl.attacks import drawn_attackers
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import (
    CommandLineError,
    RunValue,
    compared,
    cross_table,
    cross_values,
    to_csv,
    to_markdown,
)

ACCURACY = "personalized/local_test/accuracy"
ATTACK = {"client_ids": [0], "fraction": 0.0}


@pytest.fixture
def comparison(tmp_path):
    def write(name, *seeds, **settings):
        settings = {"attack": ATTACK} | settings
        return [
            write_run(tmp_path / name / str(seed), accuracies, seed=seed, **settings)
            for seed, accuracies in enumerate(seeds)
        ]

    write_run(tmp_path / "going on", [1.0, 1.0], finished=False)
    return compared(
        "Two",
        {
            "Ditto, noise | mean": write("a", (0.0, 0.5, 0.75), (0.0, 0.75, 0.75)),
            "Ditto, noise | median": write("b", (0.75, 1.0, 0.75), (0.0, 1.0, 0.75)),
            "FedPG, noise | its own": write("c", (1.0, 0.25, 0.5)),
            "FedPG, noise | median": [tmp_path / "going on"],
        },
    )


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_rows_and_columns_are_the_parts_of_labels(comparison):
    table = cross_table(comparison, ACCURACY, exclude_attackers=True)
    assert table.heads == ["", "mean", "median", "its own"]
    assert texts(table) == [
        ["Ditto, noise", "68.75 ± 8.84", "87.50 ± 0.00", "-"],
        ["FedPG, noise", "-", "-", "37.50"],
    ]
    bold = [[cell.bold for cell in row] for row in table.rows]
    assert bold == [[False, False, True, False], [False] * 4]
    assert "Of honest clients alone." in to_markdown(table)


def test_the_numbers_of_each_run(comparison):
    values = cross_values(comparison, ACCURACY, exclude_attackers=True)
    assert to_csv(values, RunValue._fields).splitlines() == [
        "row,column,seed,value",
        '"Ditto, noise",mean,0,0.625',
        '"Ditto, noise",mean,1,0.75',
        '"Ditto, noise",median,0,0.875',
        '"Ditto, noise",median,1,0.875',
        '"FedPG, noise",its own,0,0.375',
    ]


def test_attackers_count_unless_they_are_left_out(comparison):
    table = cross_table(comparison, ACCURACY)
    assert texts(table)[1][-1] == "58.33"
    assert "honest" not in to_markdown(table)
    table = cross_table(comparison, ACCURACY, exclude_attackers=True, exclude_clients=[0, 2])
    assert texts(table)[1][-1] == "25.00"
    assert "Without clients 0, 2." in table.notes


def test_of_losses_the_lowest_is_the_best(comparison):
    table = cross_table(comparison, "personalized/local_test/loss", exclude_attackers=True)
    assert texts(table)[0] == ["Ditto, noise", "0.312 ± 0.0884", "0.125 ± 0", "-"]
    assert table.rows[0][2].bold


def test_other_labels_and_columns_are_refused(comparison, tmp_path):
    with pytest.raises(OutputDirectoryError, match="Unknown column .* Did you mean"):
        cross_table(comparison, "personalized/local_test/acuracy")
    run = write_run(tmp_path / "run", (0.5, 1.0))
    with pytest.raises(CommandLineError, match="are 'ROW | COLUMN', found 'Ditto'"):
        cross_table(compared("One", {"Ditto": [run]}), ACCURACY)
    nothing = compared("None", {"Ditto | mean": [tmp_path / "not there"]})
    with pytest.raises(CommandLineError, match="MODEL/POOL/QUANTITY, found 'personalized/loss'"):
        cross_table(nothing, "personalized/loss")


def test_the_attackers_of_a_run(tmp_path):
    def attackers(**settings):
        return RunFiles(write_run(tmp_path / "run", [0.5] * 10, seed=3, **settings)).attackers()

    assert attackers() == ()  # of a version without attacks
    assert attackers(attack={"name": "scaled_uploads", "client_ids": [4, 7]}) == (4, 7)
    assert attackers(attack={"client_ids": [], "fraction": 0.3}) == drawn_attackers(0.3, 10, 3)


def test_the_program_prints_it(tmp_path):
    runs = [
        f"Ditto | {name}:{write_run(tmp_path / name, accuracies, attack=ATTACK)}"
        for name, accuracies in (("mean", (0.0, 0.5)), ("median", (0.5, 1.0)))
    ]
    done = run_main("report.py", "cross_table", *runs, "--exclude_attackers")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "|  | mean | median |\n|---|---:|---:|\n| Ditto | 50.00 | **100.00"
    )
    done = run_main("report.py", "cross_table", *runs, "--format=latex", "--exclude_clients=1")
    assert r"Ditto & 0.00 & \textbf{50.00} \\" in done.stdout
    done = run_main("report.py", "cross_table", *runs, "--against=mean")
    assert "cross_table knows no --against" in done.stderr
    done = run_main("report.py", "cross_table", *runs, "--each_run")
    assert done.stdout.splitlines()[0] == "row,column,seed,value"

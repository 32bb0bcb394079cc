"""Numbers of single clients of runs that are written by hand."""

import pytest

from tests.reports.hand_written import write_run
from tests.runs import run_main
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import client_values, compared

ACCURACY = "personalized/local_test/accuracy"


def test_variants_stand_beside_each_other_by_seed_and_client(tmp_path):
    def write(name, **seeds):
        return [
            write_run(tmp_path / name / seed, accuracies, seed=int(seed[1:]), first_row=10)
            for seed, accuracies in seeds.items()
        ]

    results = {
        "Ditto": write("a", s1=(0.5, 0.75), s0=(0.0, 0.25)),
        "FedPG, gamma 1": write("b", s0=(1.0, 0.125)),
    }
    found = client_values(compared("Two", results), ACCURACY)
    assert found.heads == ["seed", "client_id", "Ditto", "FedPG, gamma 1"]
    assert found.rows == [
        [0, 0, 0.0, 1.0],
        [0, 1, 0.25, 0.125],
        [1, 0, 0.5, None],
        [1, 1, 0.75, None],
    ]


def test_other_clients_and_columns_are_refused(tmp_path):
    runs = [write_run(tmp_path / str(row), (0.5, 1.0), first_row=row) for row in (0, 10)]
    comparison = compared("Two", {"a": runs[:1], "b": runs[1:]})
    with pytest.raises(OutputDirectoryError, match="different partitions.*beside each other"):
        client_values(comparison, ACCURACY)
    with pytest.raises(OutputDirectoryError, match="Unknown column .* Did you mean"):
        client_values(compared("One", {"a": runs[:1]}), "personalized/local_test/acuracy")


def test_other_samples_of_the_same_clients_are_refused(tmp_path):
    runs = [write_run(tmp_path / name, (0.5, 1.0, 0.25)) for name in "ab"]
    table = runs[1] / "clients" / "round_000010.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[::2]))  # without 0 and 2
    with pytest.raises(OutputDirectoryError, match=r"different clients \(3 and 1 of them\)"):
        client_values(compared("Two", {"a": runs[:1], "b": runs[1:]}), ACCURACY)


def test_the_program_prints_lines_of_csv(tmp_path):
    run = write_run(tmp_path / "run", (0.5, 1.0), seed=7)
    done = run_main("report.py", "clients", f"Ditto:{run}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "seed,client_id,Ditto\n7,0,0.5\n7,1,1.0\n"

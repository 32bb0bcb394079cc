"""Tests the file of predictions of a tiny run."""

import numpy as np
import pandas as pd
import pytest

from tests.marks import slow
from tests.runs import run_main, tiny_config
from tff_pfl.config import build_dataset, evaluate_program, run_of
from tff_pfl.data import Partition
from tff_pfl.evaluation import sampled_clients
from tff_pfl.experiment import RunFiles

TEST_SIZES = [210, 1, 0, 30]


@pytest.fixture(scope="module")
def unequal(tmp_path_factory, finished_run):
    """Returns `(algorithm, **changes) -> folder` of a run whose clients have `TEST_SIZES`."""
    path = tmp_path_factory.mktemp("data") / "unequal.npz"
    labels = build_dataset(tiny_config()).y
    rows = np.random.default_rng(0).permutation(len(labels))
    train, test = np.split(rows[:200], [5, 50, 150]), np.split(rows[200:441], [210, 211, 211])
    Partition(train, [rows[:0]] * 4, test).save(path)
    return lambda *args, **changes: finished_run(
        *args, data={"partition_file": str(path)}, **changes
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "models"),
    [("ditto", ["personalized", "global"]), slow("fedper", ["personalized"])],
)
@pytest.mark.parametrize("number", [0, slow(3)])
def test_accuracies_from_the_file_are_those_of_the_run(
    unequal, tmp_path, algorithm, models, number
):
    run = unequal(algorithm)
    options = {"predictions": True, "clients": number}
    assert evaluate_program(str(run), str(tmp_path / "found"), **options) == 0
    frame = pd.read_parquet(tmp_path / "found_predictions.parquet")
    of_models = [column for name in models for column in (name, f"{name}_loss")]
    assert list(frame) == ["client_id", "example", "label", *of_models]
    ids = sampled_clients(0, 4, number) if number else np.arange(4)
    partition, labels = Partition.load(run / "partition.npz"), build_dataset(tiny_config()).y
    columns = RunFiles(run).clients().numbers
    for client_id in ids:
        rows = frame[frame["client_id"] == client_id]
        assert len(rows) == TEST_SIZES[client_id]
        np.testing.assert_array_equal(rows["example"], partition.test[client_id])
        np.testing.assert_array_equal(rows["label"], labels[rows["example"]])
        for name in models if len(rows) else ():
            logits = np.stack(rows[name])
            assert logits.dtype == np.float32 and logits.shape[1] == 10
            accuracy = np.mean(logits.argmax(axis=1) == rows["label"])
            assert accuracy == columns[f"{name}/local_test/accuracy"][client_id]
            loss = columns[f"{name}/local_test/loss"][client_id]
            assert rows[f"{name}_loss"].mean() == pytest.approx(loss, rel=1e-5)
    assert set(frame["client_id"]) == set(ids) - {2}


@pytest.mark.slow
def test_predictions_are_of_further_models_but_not_of_the_baseline(unequal):
    run = run_of(unequal("ditto"))
    found = run.evaluate(
        baseline=run, predictions=True, further_models=("fine_tuned",), fine_tune_epochs=1
    )
    assert list(found.predictions.models) == ["personalized", "fine_tuned", "global"]
    own, tuned = (found.predictions.models[name].loss for name in ("personalized", "fine_tuned"))
    assert np.mean(tuned) < np.mean(own)
    assert found.baseline.predictions is None


def test_program_writes_predictions_only_on_request(unequal, tmp_path):
    flags = [f"--run_dir={unequal('ditto')}", "--nogeneralization"]
    plain = run_main("evaluate.py", *flags, f"--output={tmp_path / 'a'}")
    asked = run_main("evaluate.py", *flags, f"--output={tmp_path / 'b'}", "--predictions")
    assert (plain.returncode, asked.returncode) == (0, 0), asked.stderr
    assert plain.stdout.splitlines()[-1].endswith(f"{tmp_path / 'a'}.csv")
    assert asked.stdout.splitlines()[-1].endswith(f", {tmp_path / 'b'}_predictions.parquet")
    assert [path.name for path in tmp_path.glob("*.parquet")] == ["b_predictions.parquet"]

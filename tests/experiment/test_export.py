"""`export_run`: the models that a run leaves are those that it evaluated."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import slow
from tests.runs import keep_the_context, tiny_config, train_run
from tff_pfl.experiment import (
    OutputDirectoryError,
    export_program,
    export_run,
    restored_run,
)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """`algorithm -> directory` of a finished run of two rounds, and only one an algorithm."""
    folder, evaluation = tmp_path_factory.mktemp("runs"), {"fine_tune_epochs": 1}

    def run_of(algorithm):
        path = folder / algorithm
        if not path.exists():
            train_run(path, tiny_config(algorithm, evaluation=evaluation))
        return path

    return run_of


@pytest.mark.parametrize("algorithm", ["ditto", *map(slow, ["splitgp", "pfedmb", "local"])])
def test_models_are_as_accurate_as_the_run_says(run_of, tmp_path, algorithm):
    run_dir, output = run_of(algorithm), tmp_path / "new" / "models"
    exported = export_run(run_dir, output)
    with restored_run(run_dir) as run:
        tests = run.source.select_examples(range(4), "test")
        has_global = run.process.global_weights is not None
    names = [*["global"] * has_global, *(f"client_{client}" for client in range(4))]
    assert exported == (f"{algorithm} on digits", 2, names)
    assert {path.name for path in output.iterdir()} == {*names, "models.json"}
    description = json.loads((output / "models.json").read_text())
    assert description["models"] == names
    assert (description["input_shape"], description["input_dtype"]) == ([8, 8, 1], "uint8")
    final = json.loads((run_dir / "summary.json").read_text())["final"]["metrics"]
    of_clients = [tf.saved_model.load(str(output / f"client_{client}")) for client in range(4)]
    models = {"personalized": of_clients}
    if has_global:
        models["global"] = [tf.saved_model.load(str(output / "global"))] * 4
    for name, loaded in models.items():
        accuracies = []
        for model, test in zip(loaded, tests, strict=True):
            x, y = (np.asarray(values)[: int(test.size)] for values in (test.x, test.y))
            accuracies.append(np.mean(np.argmax(model(x), axis=1) == y))
        assert np.mean(accuracies) == pytest.approx(final[f"{name}/local_test/accuracy_mean"])


def test_models_of_some_clients(run_of, tmp_path, capsys):
    output = tmp_path / "models"
    arguments = {"client_ids": [3, 0], "set_context": keep_the_context}
    assert export_program(str(run_of("ditto")), str(output), **arguments) == 0
    assert {path.name for path in output.iterdir()} == {
        *("global", "client_0", "client_3", "models.json")
    }
    assert capsys.readouterr().out == (
        f"3 models of round 2 of ditto on digits\nresults: {output}\n"
    )
    assert export_program(str(run_of("ditto")), str(output), **arguments) == 1
    assert "models is not empty; these results need a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 4], "has no client 4 that trains; they are 0 to 3."),
        ([-1], "has no client -1"),
        ([2, 1, 2], "named twice"),
    ],
)
def test_clients_that_cannot_be(run_of, tmp_path, ids, message):
    with pytest.raises(OutputDirectoryError, match=message):
        export_run(run_of("ditto"), tmp_path / "models", ids)
    assert not (tmp_path / "models").exists()


def test_folders_that_cannot_be(run_of, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for output in ("file", "file/models"):
        path = str(tmp_path / output)
        code = export_program(
            str(run_of("ditto")), path, set_context=lambda: pytest.fail("computes")
        )
        assert code == 1
        assert f"{tmp_path / 'file'} is a file" in capsys.readouterr().err
    assert export_program(str(tmp_path), str(tmp_path / "models")) == 1
    assert "has no config.json of a run" in capsys.readouterr().err

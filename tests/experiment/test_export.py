"""Tests that exported models equal the models that the run evaluated."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, local_sgd
from tests.marks import slow
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.experiment import (
    OutputDirectoryError,
    export_models,
    export_new_clients,
    export_program,
    export_run,
    restored_run,
)
from tff_pfl.experiment.export import folder_name
from tff_pfl.local import ClientContext, seeds
from tff_pfl.models import MODELS, ModelSaver


@MODELS.register("batch_normalized")
def batch_normalized(image_shape, num_classes, *, hidden=(4,)):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=image_shape),
            *(tf.keras.layers.Dense(width, "relu") for width in hidden),
            tf.keras.layers.BatchNormalization(name="norm"),
            tf.keras.layers.Dense(num_classes, name="head"),
        ]
    )


@pytest.fixture(scope="module")
def run_of(finished_run):
    models = {"fedbn": {"model": {"name": "batch_normalized"}}}
    return lambda algorithm: finished_run(
        algorithm, evaluation={"fine_tune_epochs": 1}, **models.get(algorithm, {})
    )


@pytest.mark.parametrize(
    "algorithm", ["ditto", *map(slow, ["splitgp", "pfedmb", "local", "fedbn"])]
)
def test_exported_models_have_the_accuracy_of_the_run(run_of, tmp_path, algorithm):
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


def test_program_exports_the_given_clients(run_of, tmp_path, capsys):
    output, clients = tmp_path / "models", ["3", "0", "3"]
    assert export_program(str(run_of("ditto")), str(output), clients=clients) == 0
    assert {path.name for path in output.iterdir()} == {
        *("global", "client_0", "client_3", "models.json")
    }
    assert capsys.readouterr().out == (
        f"3 models of round 2 of ditto on digits\nresults: {output}\n"
    )
    assert export_program(str(run_of("ditto")), str(output), clients=clients) == 1
    assert "models is not empty. Choose an empty or a new folder" in capsys.readouterr().err


def test_runs_are_exported_without_a_config(run_of, tmp_path, monkeypatch):
    saved = {}
    monkeypatch.setattr(ModelSaver, "save", lambda _, of, path: saved.update({path: of}))
    with restored_run(run_of("ditto")) as run:
        trained, dataset = (run.process, run.model), run.dataset
        weights = [run.process.global_weights(run.server_state)]
        weights += run.process.personalize(run.server_state, run.source.clients_of_ids([3]))
    found = export_models(*trained, dataset, run_of("ditto"), tmp_path / "new", [3])
    assert found == (str(run_of("ditto")), 2, ["global", "client_3"])
    assert list(saved) == [tmp_path / "new" / name for name in found.models]
    tf.nest.map_structure(np.testing.assert_array_equal, list(saved.values()), weights)
    reordered, brighter = dataset.of([1, 0, 2, 3]), dataset.map(lambda x: tf.cast(x, tf.uint8) + 1)
    for other, what in ((reordered, "data and their partition"), (brighter, "inputs")):
        message = f"is a run of something else: the fingerprint of its {what}"
        with pytest.raises(OutputDirectoryError, match=message):
            export_models(*trained, other, run_of("ditto"), tmp_path / "refused")
    with pytest.raises(OutputDirectoryError, match="has no checkpoint of a run"):
        export_models(*trained, dataset, tmp_path, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_new_clients_fine_tune_the_global_model(run_of, tmp_path, monkeypatch):
    saved = {}
    monkeypatch.setattr(ModelSaver, "save", lambda _, of, path: saved.update({path.name: of}))
    with restored_run(run_of("ditto")) as run:
        process, model, state = run.process, run.model, run.server_state
        new = run.dataset.of([3, 1])
    arguments = (process, model, local_sgd(), new, run_of("ditto"))
    found = export_new_clients(*arguments, tmp_path / "new", fine_tune_epochs=2)
    assert found == (str(run_of("ditto")), 2, ["global", "client_4", "client_5"])
    weights = process.global_weights(state)
    seed = seeds.client_seed(seeds.run_seed(0, seeds.FINE_TUNING), np.int32(2), np.int32(1))
    context = ClientContext(np.int32(2), np.int32(1), seed).of_evaluation()
    tuned = local_sgd().train(model, weights, new.examples(1), context, epochs=2).weights
    assert_close([saved["global"], saved["client_5"]], [weights, tuned])


def test_impossible_exports_are_refused(run_of, tmp_path, capsys):
    for ids, message in (([0, 4], r"Client 4 does not exist: ids are 0\.\.3"), (["x"], "x")):
        with pytest.raises(UnknownNameError, match=message):
            export_run(run_of("ditto"), tmp_path / "models", ids)
    assert not (tmp_path / "models").exists()
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "models")
    assert export_program(str(run_of("ditto")), path) == 1
    assert f"{tmp_path / 'file'} is a file" in capsys.readouterr().err
    assert export_program(str(run_of("ditto")), str(tmp_path / "models"), clients=["4"]) == 1
    assert "Client '4' does not exist" in capsys.readouterr().err
    assert export_program(str(tmp_path), str(tmp_path / "models")) == 1
    assert "has no config.json of a run" in capsys.readouterr().err


def test_folder_of_a_client_has_a_name_that_file_systems_take():
    assert folder_name("a/b") == "a%2Fb"
    names = ["x" * 200, "x" * 247, "x" * 248, "ä" * 100, "ä" * 101]
    folders = list(map(folder_name, names))
    assert folders[0] == names[0] and len(set(folders)) == len(names)
    assert max(map(len, folders)) <= 255 - len("client_")

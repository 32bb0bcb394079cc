"""Tests that exported models equal the models that the run evaluated."""

import dataclasses
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close
from tests.marks import slow
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.config import export_program, run_of
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment import OutputDirectoryError, Run
from tff_pfl.experiment.export import in_path
from tff_pfl.local import ClientContext, seeds


@pytest.fixture(scope="module")
def folder_of(finished_run):
    return lambda algorithm: finished_run(algorithm, evaluation={"fine_tune_epochs": 1})


@pytest.fixture(scope="module")
def run_of_ditto(folder_of):
    return run_of(folder_of("ditto"))


@pytest.mark.parametrize("algorithm", ["ditto", *map(slow, ["splitgp", "pfedmb", "local"])])
def test_exported_models_have_the_accuracy_of_the_run(folder_of, tmp_path, algorithm):
    run_dir, output = folder_of(algorithm), tmp_path / "new" / "models"
    run = run_of(run_dir)
    exported = run.export(output)
    with run.restored() as found:
        tests = found.source.select_examples(range(4), "test")
    has_global = run.experiment.process.global_weights is not None
    names = [*["global"] * has_global, *(f"client_{client}" for client in range(4))]
    assert exported == (f"{algorithm} on digits", 2, names)
    assert set(os.listdir(output)) == {*names, "models.json"}
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


@pytest.mark.thorough
def test_program_exports_the_given_clients(run_of_ditto, tmp_path, capsys):
    output = tmp_path / "models"

    def export(*clients, **options):
        return export_program(run_of_ditto.folder, str(output), clients=clients, **options)

    assert export("3", "0", "3") == 0
    assert set(os.listdir(output)) == {"global", "client_0", "client_3", "models.json"}
    assert capsys.readouterr().out == (
        f"3 models of round 2 of ditto on digits\nresults: {output}\n"
    )
    assert export("3") == 1
    assert "models already contains models. Pass --overwrite to delete" in capsys.readouterr().err
    (output / "notes.txt").write_text("mine")
    assert export("1", overwrite=True) == 0
    assert set(os.listdir(output)) == {"global", "client_1", "models.json", "notes.txt"}


def test_run_of_other_data_is_not_exported(run_of_ditto, tmp_path):
    experiment = run_of_ditto.experiment
    dataset = experiment.dataset
    reordered, brighter = dataset.of([1, 0, 2, 3]), dataset.map(lambda x: tf.cast(x, tf.uint8) + 1)
    for other, what in ((reordered, "data and their partition"), (brighter, "inputs")):
        changed = dataclasses.replace(experiment, dataset=other)
        message = f"is a run of something else: the fingerprint of its {what}"
        with pytest.raises(OutputDirectoryError, match=message):
            Run(run_of_ditto.folder, changed).export(tmp_path / "refused")
    with pytest.raises(OutputDirectoryError, match="has no checkpoint"):
        Run(tmp_path, experiment).export(tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_new_clients_fine_tune_the_global_model(run_of_ditto, tmp_path):
    experiment = run_of_ditto.experiment
    new = experiment.dataset.of([3, 1])
    found = run_of_ditto.export_new_clients(new, tmp_path / "new", fine_tune_epochs=2)
    assert found == ("ditto on digits", 2, ["global", "client_4", "client_5"])
    with run_of_ditto.restored() as restored:
        weights = experiment.process.global_weights(restored.server_state)
    seed = seeds.client_seed(seeds.run_seed(0, seeds.FINE_TUNING), np.int32(2), np.int32(1))
    context = ClientContext(np.int32(2), np.int32(1), seed).of_evaluation()
    model, examples = experiment.model, new.examples(1)
    tuned = experiment.local.train(model, weights, examples, context, epochs=2).weights
    for name, expected in (("global", weights), ("client_5", tuned)):
        saved = tf.saved_model.load(str(tmp_path / "new" / name))
        assert_close(saved(examples.x), model.apply(expected, examples.x))


def test_new_clients_of_other_classes_are_refused(run_of_ditto, tmp_path):
    experiment, digits = run_of_ditto.experiment, run_of_ditto.experiment.dataset

    def named(names):
        return FederatedDataset(digits.x, np.array(names)[digits.y], 10, digits.partition)

    with_names = dataclasses.replace(experiment, dataset=named(list("badcefghij")))
    run = Run(run_of_ditto.folder, with_names)
    more = FederatedDataset(digits.x, digits.y + 1, 11, digits.partition)
    for refusing, new, message in (
        (run, named(list("badcefghik")), "Class 9 is 'j' in the run .*, but 'k' in the data 'cust"),
        (run_of_ditto, with_names.dataset, "Class 0 is missing in .* pass numbers as labels"),
        (run, more, "has 10 logits, but the data have 11 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            refusing.export_new_clients(new, tmp_path / "refused", fine_tune_epochs=0)
    assert with_names.dataset.fingerprint != named(list("badcefghik")).fingerprint


def test_impossible_exports_are_refused(run_of_ditto, tmp_path, capsys):
    with pytest.raises(UnknownNameError, match=r"Client 4 does not exist: ids are 0\.\.3"):
        run_of_ditto.export(tmp_path / "models", [0, 4])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputDirectoryError, match="is not empty. Choose an empty or a new folder"):
        run_of_ditto.export(tmp_path, overwrite=True)
    path = str(tmp_path / "file" / "models")
    assert export_program(run_of_ditto.folder, path) == 1
    assert f"{tmp_path / 'file'} is a file" in capsys.readouterr().err
    assert export_program(run_of_ditto.folder, str(tmp_path / "models"), clients=["4"]) == 1
    assert "Client '4' does not exist" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_folder_of_a_client_has_a_name_that_file_systems_take():
    assert in_path("a/b") == "a%2Fb"
    names = ["x" * 200, "x" * 247, "x" * 248, "ä" * 100, "ä" * 101]
    folders = list(map(in_path, names))
    assert folders[0] == names[0] and len(set(folders)) == len(names)
    assert max(map(len, folders)) <= 255 - len("client_")

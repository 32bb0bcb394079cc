"""Tests comparisons whose runs are trained by other processes."""

import pytest
import tensorflow as tf

import tff_pfl
from tff_pfl.cluster.recipes import Recipe
from tff_pfl.studies.trainings import train_experiment


def experiment(**changes):
    dataset = tff_pfl.federate(
        tff_pfl.load("digits"), num_clients=4, partitioner="dirichlet", seed=0
    )
    model = tff_pfl.models.build("mlp", dataset.image_shape, dataset.num_classes, hidden=(4,))
    local = tff_pfl.LocalTraining(tff_pfl.OPTIMIZERS["sgd"](0.1), epochs=1, batch_size=100)
    method = tff_pfl.make("fedavg", changes.pop("model", model), local)
    return tff_pfl.Experiment(method, dataset, rounds=2, clients_per_round=2, **changes)


@pytest.mark.thorough
def test_runs_of_workers_are_those_of_this_process(tmp_path, dask_client, capsys):
    here, there = tmp_path / "here", tmp_path / "there"
    experiments = {"FedAvg": experiment()}
    own = tff_pfl.compare(experiments, seeds=(0, 1), folder=here)
    capsys.readouterr()
    compared = tff_pfl.compare(experiments, seeds=(0, 1), folder=there, client=dask_client)
    assert "FedAvg, seed 1 (2 of 2): personalized/local_test/accuracy " in capsys.readouterr().out
    columns = ["accuracy", "std", "rounds", "bytes_up"]
    assert compared.table().to_dict().keys() == own.table().to_dict().keys()
    for column in set(columns) & set(own.table()):
        assert compared.table()[column].equals(own.table()[column])
    for name in ("metrics.csv", "config.json"):
        assert (there / "FedAvg/seed1" / name).read_text() == (
            here / "FedAvg/seed1" / name
        ).read_text()
    # Both go on with each other's runs.
    tff_pfl.compare(experiments, seeds=(0, 1), folder=there)
    assert "FedAvg, seed 0: was finished before\n" in capsys.readouterr().out
    tff_pfl.compare(experiments, folder=here, client=dask_client, overwrite=True)
    assert "FedAvg, seed 0 (1 of 1): " in capsys.readouterr().out


def test_worker_with_other_data_trains_nothing(tmp_path):
    wanted = {"data": "0", "inputs": "1"}
    recipe = Recipe.of({**experiment().recipe, "fingerprints": wanted}, title="A")
    assert train_experiment(recipe, str(tmp_path / "run")) == 1
    log = (tmp_path / "run.log").read_text()
    assert log.startswith("error: The data set 'digits' of this worker differs from that of the")
    assert not (tmp_path / "run").exists()


def test_part_without_a_name_is_named(tmp_path):
    def network():
        return tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])

    own = experiment(model=tff_pfl.from_keras(network, input_shape=(8, 8, 1)))
    message = (
        "^'FedAvg, seed 0' cannot be trained by other processes, which know parts by their names. "
        "The model was not made by a name. .* Name it, or leave out jobs and client."
    )
    with pytest.raises(ValueError, match=message):
        tff_pfl.compare({"FedAvg": own}, folder=tmp_path, jobs=2)
    assert not list(tmp_path.iterdir())

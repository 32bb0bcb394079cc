"""Tests that a run's tables, its evaluation, its analysis and its export name the clients."""

import pathlib

import numpy as np
import pyarrow.parquet
import pytest

from tests.experiment.killed import rows_of
from tests.federation import tiny_experiment
from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl import analysis
from tff_pfl.config import build_dataset, experiment_of
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import NewClients, RunFiles, train

NAMES = ["user_17", "a, b", "1000003", "x/y"]


@pytest.fixture(
    scope="module",
    params=[pytest.param(NAMES, id="text"), slow([1000003, 0, 7, -2], id="numbers")],
)
def named_run(request, dataset, tmp_path_factory):
    """Returns a run of three clients with names, which holds out a fourth, and its names."""
    of_four = dataset.of(range(4))
    partition = of_four.partition.named(request.param)
    named = FederatedDataset(of_four.x, of_four.y, 3, partition)
    experiment = tiny_experiment(named, rounds=2, new_clients=NewClients(1, fine_tune_epochs=1))
    return train(experiment, tmp_path_factory.mktemp("named")), request.param


def names_in(folder, name):
    return [row["client_id"] for row in rows_of(folder, name)]


@pytest.mark.thorough
def test_tables_have_names_instead_of_ids(named_run, tmp_path):
    run, names = named_run
    folder = pathlib.Path(run.folder)
    assert names_in(folder, "clients/round_000002.csv") == list(map(str, names[:3]))
    assert names_in(folder, "new_clients.csv") == [str(names[3])]
    sampled = run.evaluate(clients=2)
    ids = sampled.clients.client_ids
    assert sampled.columns()["client_id"].tolist() == [names[i] for i in ids]
    assert len(ids) == 2
    found = run.evaluate(predictions=True)
    assert found.columns()["client_id"].tolist() == names[:3]
    paths = found.write(str(tmp_path / "out"))
    assert names_in(tmp_path, "out_new_clients.csv") == [str(names[3])]
    predicted = pyarrow.parquet.read_table(paths[-1])["client_id"].to_numpy(zero_copy_only=False)
    sizes = found.clients.num_examples
    assert predicted.tolist() == np.repeat(np.array(names[:3]), sizes).tolist()


@pytest.mark.thorough
def test_frames_have_names_and_leave_out_clients_by_name(named_run):
    run, names = named_run
    frame = analysis.read(run.folder).clients()
    assert list(dict.fromkeys(frame["client_id"])) == names[:3]
    column = "personalized/local_test/accuracy"
    kept = analysis.select(frame, column, exclude_clients=[str(names[1])])
    assert kept["client_id"].tolist() == [names[0], names[2]]
    values = analysis.client_values(analysis.read(run.folder), column)
    assert {name for _, name in values.index} == set(names[:3])


@pytest.mark.thorough
def test_clients_are_selected_by_name(named_run, tmp_path):
    run, names = named_run
    with run.restored() as restored:
        clients = restored.source.select_clients([names[2], names[0]])
        assert [int(client.client_id) for client in clients] == [2, 0]
        iterator = restored.source.iterator()
        assert [int(client.client_id) for client in iterator.choose([names[1]])] == [1]
    assert run.export(tmp_path / "models", [names[3], names[1]]).models == [
        "global",
        "client_a%2C%20b" if isinstance(names[1], str) else "client_0",
        "client_x%2Fy" if isinstance(names[1], str) else "client_-2",
    ]
    new = run.experiment.dataset.of([3, 0])
    with pytest.raises(ValueError, match="trained in the run, so"):
        run.export_new_clients(new, tmp_path / "refused", fine_tune_epochs=1)


def test_names_of_digits_stay_text(tmp_path):
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / "round_000001.csv").write_text("client_id,num_examples,loss\n250,1,0.5\n17,2,0.5\n")
    partition = Partition([[0], [1]], [[], []], [[], []])
    for names in (["250", "17"], [250, 17]):
        partition.named(names).save(tmp_path / "partition.npz")
        assert RunFiles(tmp_path).clients().numbers["client_id"].tolist() == names


def test_a_named_partition_gives_a_run_its_clients(tmp_path):
    partition = build_dataset(tiny_config()).partition.named(NAMES)
    partition.save(tmp_path / "p.npz")
    experiment = experiment_of(
        tiny_config(data={"partition_file": str(tmp_path / "p.npz")}, new_clients={"number": 2})
    )
    assert experiment.members.names.tolist() == NAMES[:2]
    assert experiment.newcomers.names.tolist() == NAMES[2:]

"""Tests trainings by the workers of a cluster: their numbers, their files, and lost workers."""

import dataclasses
import errno
import itertools
import os
import random
import signal
import threading
import time

import distributed
import pandas as pd
import pytest

import tff_pfl
from tests.cluster.named import experiment
from tests.federation import assert_close
from tff_pfl import config as configs
from tff_pfl.arguments.ranges import RangeError
from tff_pfl.clients import StateStoreError
from tff_pfl.clients.state_files import StateFiles
from tff_pfl.cluster import ClusterError, Team, local
from tff_pfl.cluster.team import divided
from tff_pfl.experiment.recipe import NoRecipeError


def train(folder, *arguments, client=None, verbose=False, **options):
    cluster = {} if client is None else {"client": client, "parts": 4}
    made = options.pop("made", None) or experiment(*arguments, **options.pop("fields", {}))
    return tff_pfl.train(made, folder, verbose=verbose, **cluster, **options)


def metrics_of(run):
    return pd.read_csv(f"{run.folder}/metrics.csv")


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["ditto", "fedamp", "fedpac"])
def test_numbers_are_those_without_a_cluster_but_for_rounding(tmp_path, dask_client, method):
    fields = {"evaluation": tff_pfl.Evaluation(every=2, generalization="last")}
    own = train(tmp_path / "own", method, fields=fields)
    run = train(tmp_path / "run", method, fields=fields, client=dask_client)
    pd.testing.assert_frame_equal(metrics_of(own), metrics_of(run), rtol=1e-4, atol=1e-5)
    clients = [pd.read_csv(f"{it.folder}/clients/round_000004.csv") for it in (own, run)]
    pd.testing.assert_frame_equal(*clients, rtol=1e-4, atol=1e-5)
    states = []
    for it in (own, run):
        with it.restored() as found:
            states.append(found.source.store.get(range(8)))
    assert_close(*states)
    # Later evaluations read the states that workers have written.
    values = [it.evaluate().clients.columns() for it in (own, run)]
    assert values[0].keys() == values[1].keys()


@pytest.mark.thorough
def test_stopped_run_goes_on_with_a_cluster_only(tmp_path, dask_client):
    whole = train(tmp_path / "whole", client=dask_client)
    stopped = train(tmp_path / "run", client=dask_client, fields={"rounds": 2})
    with pytest.raises(StateStoreError, match="was trained by a cluster. Continue it by one"):
        train(tmp_path / "run", resume=True)
    made = experiment()
    with pytest.raises(StateStoreError, match="was trained with parts=4. Continue it in the same"):
        tff_pfl.train(
            made, tmp_path / "run", client=dask_client, parts=8, resume=True, verbose=False
        )
    again = train(tmp_path / "run", client=dask_client, resume=True)
    assert again.folder == stopped.folder
    pd.testing.assert_frame_equal(metrics_of(whole), metrics_of(again), rtol=0, atol=0)
    own = train(tmp_path / "own", fields={"rounds": 2})
    with pytest.raises(StateStoreError, match="was trained without a cluster"):
        train(own.folder, client=dask_client, resume=True)


def test_workers_get_neighbours_of_about_the_same_load():
    loads = [5, 0, 1, 1, 0, 2, 1, 0]
    assert divided(loads, 2) == [0, 1, 8]
    assert divided(loads, 1) == [0, 8]
    assert divided([1] * 8, 4) == [0, 2, 4, 6, 8]
    assert divided([1, 1], 4)[-1] == 2  # more workers than parts
    assert divided([21, 20, 20, 20], 2, before=[0, 3, 4]) == [0, 2, 4]
    assert divided([20, 2, 20, 0], 2, before=[0, 2, 4]) == [0, 2, 4]


def test_experiments_that_a_cluster_cannot_train_are_refused(tmp_path, dask_client):
    with pytest.raises(RangeError, match="parts must be a power of two, such as 16, got 12"):
        tff_pfl.train(experiment(), tmp_path / "a", client=dask_client, parts=12)
    made = experiment()
    data = made.dataset
    own = tff_pfl.FederatedDataset(data.x, data.y, 10, data.partition, "own")
    message = "^A cluster cannot train 'ditto on own': .* The data set .* or leave out client.$"
    with pytest.raises(NoRecipeError, match=message):
        train(tmp_path / "a", made=dataclasses.replace(made, dataset=own), client=dask_client)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_worker_whose_answer_is_lost_is_asked_again(tmp_path, dask_client, monkeypatch):
    """Loses answers of each exchange, also of the second, which needs what the first has kept."""
    expected = train(tmp_path / "whole", "fedamp", client=dask_client)
    gather, calls = dask_client.gather, itertools.count()

    def losing(futures, **options):
        found = gather(futures, **options)
        if next(calls) % 3 == 1:
            raise distributed.comm.CommClosedError("The answer is lost.")
        return found

    monkeypatch.setattr(dask_client, "gather", losing)
    found = train(tmp_path / "lost", "fedamp", client=dask_client)
    pd.testing.assert_frame_equal(metrics_of(expected), metrics_of(found), rtol=0, atol=0)
    assert next(calls) > 8


def test_full_disk_of_a_worker_is_named(tmp_path, dask_client, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "a.states")

    monkeypatch.setattr(StateFiles, "write", write)
    message = (
        r"^The worker \S+ cannot go on: \[Errno 28\] No space left on device: 'a.states'. Once"
    )
    with pytest.raises(ClusterError, match=message):
        train(tmp_path / "run", client=dask_client)


def test_worker_with_other_data_is_refused(tmp_path, dask_client):
    made = experiment()
    made.identity["fingerprints"].update({"data": "0", "inputs": "1"})
    with pytest.raises(configs.ConfigError, match="^The data set 'digits' of this worker differs"):
        train(tmp_path / "run", made=made, client=dask_client)


@pytest.mark.thorough
def test_lost_workers_change_no_bit(tmp_path, dask_client, monkeypatch):
    """Kills one of three workers in each round, and lets another one join."""
    expected = train(tmp_path / "whole", "fedamp", client=dask_client)
    choices, computed = random.Random(0), Team.next
    with local(3) as workers:
        cluster = workers.cluster

        def disturbed(team, state, clients):
            def kill():
                time.sleep(choices.uniform(0.0, 0.3))
                if process := choices.choice(list(cluster.workers.values())).pid:
                    os.kill(process, signal.SIGKILL)

            if int(state.round_num) == 1:
                cluster.scale(4)
            thread = threading.Thread(target=kill)
            thread.start()
            found = computed(team, state, clients)
            thread.join()
            return found

        monkeypatch.setattr(Team, "next", disturbed)
        found = train(tmp_path / "killed", "fedamp", client=workers)
    for name in ("metrics.csv", "clients/round_000004.csv"):
        files = [tmp_path / run / name for run in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    assert found.result.final.round_num == expected.result.final.round_num == 4

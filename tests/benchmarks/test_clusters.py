"""Tests the benchmark of trainings by several machines."""

import json
import subprocess

import pytest

from tests.runs import run_python


@pytest.mark.thorough
def test_machines_have_networks_of_their_own():
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("A network namespace is not permitted here.")
    flags = ["--engines=one,dask", "--machines=2", "--mbit=1000", "--rounds=3"]
    training = "--config=configs/digits.py:ditto"
    done = run_python("benchmarks/clusters.py", *flags, "--", training)
    assert done.returncode == 0, done.stderr
    first, one, dask = map(json.loads, done.stdout.splitlines())
    assert first["training"] == [training]
    assert (one["engine"], dask["engine"], dask["machines"]) == ("one", "dask", 2)
    weights = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    for name in ("bytes_to_worker", "bytes_from_worker"):
        assert weights < dask[name] < 3 * weights, name

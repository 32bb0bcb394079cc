"""Tests states of federated programs and the checksums of their files."""

import asyncio

import pytest
import tensorflow_federated as tff

from tff_pfl.drivers import CheckedStateManager
from tff_pfl.experiment import OutputDirectoryError, RunDirectory


@pytest.fixture
def directory(tmp_path):
    files = ("checksums.json", "metrics.csv", "states")
    with RunDirectory(tmp_path / "run", {"cohort": 5}, resume=True, files=files) as directory:
        yield directory


def manager_in(directory):
    states = tff.program.FileProgramStateManager(directory.file("states"), keep_total=2)
    return CheckedStateManager(states, directory, ["metrics.csv", "later.csv"])


@pytest.fixture
def path(directory):
    """Saves four states; returns the path of a file that has grown since."""

    async def run():
        manager = manager_in(directory)
        for version in range(4):
            with open(directory.file("metrics.csv"), "a") as file:
                file.write(f"{version},a\n")
            await manager.save({"x": version}, version)

    asyncio.run(run())
    with open(directory.file("metrics.csv"), "a") as file:
        file.write("4,a\n")
    return directory.file("metrics.csv")


def load(directory):
    return asyncio.run(manager_in(directory).load_latest({"x": 0}))


@pytest.mark.usefixtures("path")
def test_file_that_has_grown_is_accepted(directory):
    assert load(directory) == ({"x": 3}, 3)
    with open(directory.file("checksums.json")) as file:
        assert file.read().count("metrics.csv") == 3  # for two kept states and a new one


@pytest.mark.thorough
@pytest.mark.parametrize("content", [None, "0,a\n1,b\n2,a\n3,a\n4,a\n", "0,a\n1,a\n"])
def test_changed_or_deleted_file_is_refused(directory, path, content):
    directory.delete("metrics.csv")
    if content is not None:
        with open(path, "w") as file:
            file.write(content)
    with pytest.raises(OutputDirectoryError, match=f"{path} is missing or has changed since"):
        load(directory)


@pytest.mark.usefixtures("path")
def test_damaged_or_missing_checksums_are_refused(directory):
    directory.write_json("checksums.json", {})
    with pytest.raises(OutputDirectoryError, match="checksums.json is damaged: '3'"):
        load(directory)
    directory.delete("checksums.json")
    with pytest.raises(OutputDirectoryError, match="its checksums.json is missing. Put it back"):
        load(directory)


def test_new_program_has_no_state(directory):
    assert load(directory) == (None, 0)

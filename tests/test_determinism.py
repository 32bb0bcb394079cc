"""Tests the rows of the table in `docs/guides/determinism.md`, which name their tests.

Other files test several processes, devices or runtimes.
"""

import errno
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.runs import ROOT, tiny_config, train_run
from tff_pfl import AGGREGATORS
from tff_pfl.clients import ClientStateStore
from tff_pfl.config import run_of, run_program
from tff_pfl.experiment import RunFiles

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

PAGE = ROOT / "docs" / "guides" / "determinism.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains a run of two rounds, to compare it with others."""
    return train_run(tmp_path_factory.mktemp("run") / "run", tiny_config())


def results(run_dir):
    """Returns the contents of the files that depend only on the config, by name."""
    names = ["metrics.csv", "partition.npz", "clients/round_000002.csv"]
    return {name: (run_dir / name).read_bytes() for name in names}


@pytest.mark.thorough
def test_same_config_gives_the_same_files(run, tmp_path):
    assert results(train_run(tmp_path / "again", tiny_config())) == results(run)


def test_checkpoint_every_does_not_change_results(run, tmp_path):
    seldom = train_run(tmp_path / "seldom", tiny_config(checkpoint_every=2))
    assert results(seldom) == results(run)


def test_run_resumes_after_a_full_disk(run, tmp_path, monkeypatch, capsys):
    commit, full = ClientStateStore.commit, OSError(errno.ENOSPC, "No space left on device")
    config = tiny_config()
    with monkeypatch.context() as patch:
        commits = [commit, mock.Mock(side_effect=full)]
        patch.setattr(ClientStateStore, "commit", lambda *args: commits.pop(0)(*args))
        stopped = run_program(config, str(tmp_path / "run"))
    assert stopped == 1 and "No space left on device" in capsys.readouterr().err
    assert results(train_run(tmp_path / "run", config, resume=True)) == results(run)


def test_evaluation_of_a_finished_run_has_the_same_numbers(run):
    """Compares all numbers of the table of clients, to the last digit."""
    found, own = run_of(run).evaluate().clients.columns(), RunFiles(run).clients().numbers
    assert set(own) - set(found) == {"was_selected"}
    for name, column in found.items():
        np.testing.assert_array_equal(column, own[name], name)


@pytest.mark.thorough
def test_noise_of_dp_aggregator_is_not_seeded():
    value_type = tff.TensorType(np.float32)
    process = AGGREGATORS["dp"](clients_per_round=20, noise_multiplier=1.0).create(value_type)
    state = process.initialize()
    drawn = {float(process.next(state, [0.01] * 20).result) for _ in range(3)}
    assert len(drawn) == 3


def test_page_names_existing_tests_in_each_row():
    table = PAGE.read_text().partition("## What is equal, and what is not\n\n")[2]
    rows = [re.split(r" *\| *", row)[1:-1] for row in table.partition("\n\n")[0].splitlines()]
    without = []
    for changed, *_, tests in rows[2:]:
        named = re.findall(r"\]\(\.\./\.\./(tests/[\w/]+\.py)\)", tests)
        functions = re.findall(r"`(test_\w+)`", tests)
        code = "".join((ROOT / file).read_text() for file in named)
        assert all(f"def {function}(" in code for function in functions), changed
        if not functions:
            without.append(changed)
    assert without == ["with another number of threads", "on another machine"]

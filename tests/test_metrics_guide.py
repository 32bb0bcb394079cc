"""The code of docs/metrics.md runs as it stands, in order, where there is a run of digits."""

import csv
import json
import pathlib
import re

import pytest

from tests.federation import EXAMPLES_TYPE, local_sgd, random_examples, tiny_model
from tests.runs import tiny_config, train_run
from tff_pfl.algorithms import build_ditto
from tff_pfl.data import FederatedDataset

GUIDE = pathlib.Path(__file__).parents[1] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the guide was followed."""
    folder = tmp_path_factory.mktemp("guide")
    train_run(folder / "runs/digits", tiny_config())
    data = [random_examples(5 + i, seed=i) for i in range(3)]
    model = tiny_model()
    names = {
        "model": model,
        "process": build_ditto(model, EXAMPLES_TYPE, local_sgd()),
        "dataset": FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL):
            exec(compile(code, str(GUIDE), "exec"), names)
    return folder


def test_managers_have_all_numbers_of_each_round(folder):
    lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    with open(folder / "runs/tracked/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    for line, row in zip(lines, rows, strict=True):
        assert line.pop("round_seconds") > 0
        evaluated = line.pop("evaluation_seconds", None)
        assert (evaluated is not None) == (line["round"] % 2 == 0)
        assert {name: str(value) for name, value in line.items()} == {
            name: cell for name, cell in row.items() if cell
        }


def test_managers_of_tff(folder):
    with open(folder / "all.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == list("1234")
    assert float(rows[3]["global/local_test/accuracy_mean"]) >= 0

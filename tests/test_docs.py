"""Tests that the code of the documents runs and that the names in them exist."""

import csv
import functools
import importlib
import inspect
import itertools
import json
import os
import re
import runpy
import shlex
import sys

import numpy as np
import pytest

import tff_pfl
from tests.documents import (
    DOCUMENTS,
    NOTEBOOKS,
    commands,
    flags_of,
    python_blocks,
    required_flags_of,
    statements,
)
from tests.own_modules import own_modules
from tests.runs import ROOT, config_of_flags
from tff_pfl import config as configs
from tff_pfl import testing
from tff_pfl.config import sections
from tff_pfl.config.command_line import parse
from tff_pfl.config.options import CHOICES, Choice
from tff_pfl.experiment.metrics_log import TIMINGS
from tff_pfl.runtime import set_graph_context
from tff_pfl.studies import load_study

EXAMPLES = ROOT / "examples" / "own_method"


def path_of(guide):
    """Returns the path of a guide, by its name, or of the README."""
    return next(document for document in DOCUMENTS if document.stem == guide)


@pytest.fixture
def follow(tmp_path, monkeypatch, clients_in_a_loop):
    """Returns `(*guides) -> names`: writes the files of guides and runs their other code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def followed(*guides):
        names = {"__name__": "__main__"}
        for guide in guides:
            for file, code in python_blocks(path_of(guide)):
                if file:
                    (tmp_path / file).write_text(code)
                else:
                    exec(compile(code, guide, "exec"), names)
        return names

    with own_modules(tmp_path):
        yield followed
    set_graph_context()


def config_and_folder(monkeypatch, command, *changes):
    """Returns the config and the output directory of a `programs/train.py` command."""
    arguments = shlex.split(command.partition("programs/train.py ")[2])
    (output,) = [flag for flag in arguments if flag.startswith("--output_dir=")]
    arguments.remove(output)
    arguments = [it for it in arguments if not it.startswith("--scheduler=")]
    config = config_of_flags(monkeypatch, *arguments, *changes)
    return config, output.removeprefix("--output_dir=")


def build(config):
    """Builds the data, the model and the algorithm of a config."""
    dataset = configs.build_dataset(config)
    configs.build_algorithm(config, configs.build_model(config, dataset), dataset)


def command_with(document, text):
    (found,) = [command for command in commands(path_of(document)) if text in command]
    return found


@pytest.mark.slow
def test_readme_code_runs(follow):
    follow("README")
    compared = runpy.run_path("first_comparison.py")["compared"]
    assert compared.table().loc["Ditto", "gain"] > 0


@pytest.mark.slow
def test_comparison_of_the_guide_runs(follow):
    names = follow("comparing")
    program = runpy.run_path("compare.py")
    assert program["compared"].table().loc["Ditto", "gain"] > 0
    assert names["at_best"](program["methods"]).loc["Ditto", "gain"] > 0


@pytest.mark.thorough
def test_studies_of_the_guide_are_valid(follow):
    follow("sweeps")
    assert len(list(load_study("pulls.py").runs())) == 9
    rates = load_study("rates.py")
    assert rates.is_tuned("ditto") and rates.tuning.stages == [5, 10]


@pytest.mark.thorough
def test_guide_for_users_of_other_frameworks_runs(follow):
    names = follow("coming_from")
    assert names["metrics"]["client_work"]["train"]["accuracy"] < 0.8
    assert names["accuracy"]["fedavg"] < 0.6 < 0.9 < names["accuracy"]["ditto"]


@pytest.mark.thorough
def test_own_method_guide_runs(follow, monkeypatch):
    for guide, *texts in (
        ("own_method", "config.algorithm.head_epochs", "config.py:fedavg"),
        ("own_server", "mifa_config.py"),
    ):
        follow(guide)
        for text in texts:
            command = command_with(guide, text).replace("my_folder/", "")
            build(config_and_folder(monkeypatch, command)[0])
    tests = importlib.import_module("test_own_head")
    tests.test_no_personal_layers_are_fedavg()
    tests.test_contract(testing.contract.check_new_client)


@pytest.mark.slow
def test_methods_of_the_own_method_guide_pass_the_contract(follow):
    names = follow("own_method", "own_server")
    mifa = functools.partial(names["mifa"], num_clients=8)
    own_head = testing.Subject.of(names["own_head"].own_head)
    subjects = (own_head, testing.Subject.of(mifa, needs_uploads=True))
    for check, subject in itertools.product(testing.CHECKS, subjects):
        check(subject)


@pytest.mark.thorough
def test_guides_to_models_and_the_round_loop_run(follow):
    names = follow("own_model", "round_loop")
    result = names["run"].result
    assert result.final.mean("accuracy") > 0.8 > 0.5 > result.final.mean("accuracy", "global")
    assert len(names["models"]) == 6
    x = names["client_arrays"](3)[2]
    exported, of_keras = names["of_client_3"](x), names["keras_model"](x)
    np.testing.assert_allclose(of_keras, exported, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_guides_to_data_run(follow, monkeypatch):
    follow("own_data", "data_sets")
    sales = runpy.run_path("sales.py")
    assert sales["run"].result.final.mean("r2") > 0.8
    follow("registries")
    config, _ = config_and_folder(monkeypatch, command_with("registries", "stripes_config.py"))
    build(config)
    assert config.model.options.to_dict() == {"width": 32}
    assert config.data.by_size.to_dict() == {"ratio": 1.5}


@pytest.mark.slow
def test_comparison_of_own_data_runs(follow):
    follow("own_data")
    compared = runpy.run_path("ratings.py")["compared"].table().loc["FedPer"]
    assert compared["mse"] == pytest.approx(1.46, abs=0.1) and compared["p_value"] < 0.1


@pytest.mark.slow
def test_guide_to_deployment_runs(follow):
    assert follow("own_data", "deployment")["best"] == "Ditto"
    found = runpy.run_path("serve.py")
    np.testing.assert_array_equal(found["predicted"], found["served"]["output_0"])
    # 5000, on Saturday 1500 more, 50 a degree, and 600 for the shop's promotion
    np.testing.assert_allclose(found["predicted"], [[8100], [6050]], rtol=0.1)
    assert os.path.isdir("deployed_best/client_1003")
    assert os.path.isdir("deployed_new/client_1010")


@pytest.mark.slow
def test_round_loop_runs_without_a_global_model(follow):
    guides = (path_of("own_model"), path_of("round_loop"))
    blocks = [code for guide in guides for file, code in python_blocks(guide) if not file]
    until = next(i for i, code in enumerate(blocks) if "process.global_weights" in code) + 1
    names = {}
    for code in (blocks[0].partition("run = tff_pfl.train")[0], *blocks[2:until]):
        code = code.replace('"ditto", model, local, lambda_=0.1', '"fedper", model, local')
        exec(compile(code, "fedper", "exec"), names)
    assert len(names["models"]) == 6 and "weights" not in names


@pytest.mark.thorough
def test_guides_to_runs_run(follow):
    follow("metrics")
    follow("evaluation")
    names = follow("pictures_and_tables")
    figure, described, table = names["analyse"]()
    assert figure.axes and described["count"].item() > 1 and table["method"].item() == "digits"


@pytest.mark.thorough
def test_release_managers_have_all_numbers_of_each_round(follow):
    follow("trackers")
    with open("lines.jsonl") as file:
        lines = [json.loads(line) for line in file]
    with open("runs/tracked/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    for line, row in zip(lines, rows, strict=True):
        seconds = {name: line.pop(name) for name in TIMINGS if name in line}
        assert seconds["round_seconds"] > 0
        assert ("evaluation_seconds" in seconds) == (line["round"] % 2 == 0)
        assert {name: str(value) for name, value in line.items()} == {
            name: cell for name, cell in row.items() if cell
        }
    with open("all.csv") as file:
        assert [row["key"] for row in csv.DictReader(file)] == list("1234")


@pytest.mark.slow
def test_programs_guide_runs(follow):
    """Checks that TFF's drivers train, evaluate and release models."""
    names = follow("programs")
    losses = [
        values["evaluation/personalized/local_test/loss_mean"]
        for values in names["released"].values().values()
    ]
    assert len(losses) == 3 and losses[2] < losses[0]
    metrics = [value["model_metrics"] for value in names["train_metrics"].values().values()]
    assert len(metrics) == 2 and metrics[1]["loss"] < metrics[0]["loss"]
    (evaluated,) = names["evaluation_metrics"].values().values()
    assert evaluated["model_metrics"]["num_examples"] == sum(names["dataset"].sizes("test"))
    assert list(names["models"].values()) == ["training_checkpoint_round_2"]


OTHERS = ["attacks", "comparing", "determinism", "devices", "experiments", "large_populations"]
OTHERS += ["participation", "pretrained", "privacy", "private_uploads", "runtime", "tasks"]


@pytest.mark.thorough
@pytest.mark.parametrize("guide", OTHERS)
def test_other_guides_run(follow, guide):
    follow(guide)


@pytest.mark.thorough
def test_training_by_two_workers_runs(follow):
    assert follow("cluster_training")["run"].result.final.round_num == 3


@pytest.mark.thorough
def test_comparison_by_two_processes_runs(follow):
    table = follow("clusters")["compared"].table()
    assert list(table.index) == ["local", "ditto"] and (table["seeds"] == 2).all()


def test_all_documents_with_code_are_tested():
    tests = inspect.getsource(sys.modules[__name__])
    followed = {
        name for names in re.findall(r"follow\((.*?)\)", tests) for name in names.split('"')
    }
    with_code = {document.stem for document in DOCUMENTS if list(python_blocks(document))}
    assert with_code - followed - set(OTHERS) == set()


def test_files_in_documents_equal_the_examples():
    for document in DOCUMENTS:
        for file, code in python_blocks(document):
            if file and (EXAMPLES / file).exists() and file != "config.py":
                assert statements(code) == statements((EXAMPLES / file).read_text()), document


def test_table_of_registries_has_all_keys_and_arguments():
    text = path_of("registries").read_text()
    rows = re.findall(r"^\| `([A-Z]+)` \| (.*?) \| .*?\((.*?)\)", text, re.MULTILINE)
    choices = [*CHOICES, Choice("data.name", "", tff_pfl.DATASETS)]
    for name, keys, arguments in rows:
        registry = getattr(tff_pfl, name)
        of_registry = [choice for choice in choices if choice.registry is registry]
        assert keys == ", ".join(f"`{choice.key}`" for choice in of_registry)
        by_position = arguments.partition("*")[0].strip(", ")
        assert by_position == ", ".join(registry.takes)
        choices = [choice for choice in choices if choice not in of_registry]
    assert not choices


def test_layout_lists_all_packages():
    layout = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where a new file goes")[2]
    packages = {path.parent.name for path in (ROOT / "tff_pfl").glob("*/*.py")}
    assert packages == set(re.findall(r"^      +(\w+)/", layout, re.MULTILINE))


def test_links_point_to_existing_files():
    for document in [*DOCUMENTS, *NOTEBOOKS]:
        text = document.read_text()
        if document in NOTEBOOKS:
            text = "\n".join(line for line in text.splitlines() if line.startswith("# "))
        links = re.findall(r"\]\(([^)#]+)", re.sub("```.*?```", "", text, flags=re.DOTALL))
        files = [link for link in links if not link.startswith("https://")]
        assert [link for link in files if not (document.parent / link).exists()] == [], document


def test_documented_names_of_the_package_exist():
    text = "\n".join(document.read_text() for document in [*DOCUMENTS, *NOTEBOOKS])
    for name in set(re.findall(r"\btff_pfl(?:\.\w+)+(?!\w*[/*])", text)):
        found, *parts = name.split(".")
        value = importlib.import_module(found)
        for part in parts:
            found = f"{found}.{part}"
            value = getattr(value, part, None) or importlib.import_module(found)


def test_documented_commands_use_existing_programs_and_flags():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for document in DOCUMENTS:
        for command in commands(document):
            for program in re.findall(r"python ([\w/]+\.py)", command):
                folder = ROOT if "/" in program else document.parent
                if "/" in program or (folder / program).exists():  # else a guide writes it
                    given = set(re.findall(r"--(?:no)?(\w+)", command))
                    assert given <= flags_of(folder / program), command
                    assert required_flags_of(folder / program) <= given, command
            for arguments in re.findall(r"programs/report\.py (.*)", command):
                parse(shlex.split(arguments), "")
        named = re.findall(r"(?:^    |`)make ([a-z-]+)", document.read_text(), re.MULTILINE)
        assert set(named) <= set(targets), document


def test_configs_of_documented_commands_are_valid(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in (command for document in DOCUMENTS for command in commands(document)):
        of_repository = re.search(r"programs/train.py --config=configs/[a-z]", command)
        if of_repository and "imports" not in command:
            config_and_folder(monkeypatch, command)


def config_keys():
    """Returns all keys that configs can have, including sections."""
    known = {*sections.SECTIONS, *map(str, sections.keys()), *(it.key for it in CHOICES)}
    for choice in CHOICES:
        for name in choice.registry:
            section = choice.section.format(name)
            known |= {section, *(f"{section}.{key}" for key in choice.parameters(name))}
    return known


def test_documented_keys_of_configs_exist():
    known = config_keys()
    known |= {"algorithm.own_share", "algorithm.share", "model.options.width", "data.by_size.ratio"}
    for document in [*DOCUMENTS, *NOTEBOOKS]:
        text = "".join(code for code in re.split(r"```\w*\n", document.read_text())[::2])
        named = set(re.findall(r"(?<!\w\.)\bconfig\.([a-z_]+(?:\.[a-z_]+)*)(?!\w*[(/])", text))
        named |= {f for c in commands(document) for f in re.findall(r"--config\.([a-z_.]+)", c)}
        assert named - known - {"json", "py"} == set(), document

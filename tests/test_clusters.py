"""Tests that the files for clusters name programs, flags and files that exist."""

import re
import shlex

import pytest
import yaml

from tests.documents import flags_of
from tests.runs import ROOT
from tff_pfl.shipped import config_file

FOLDER = ROOT / "examples" / "clusters"
KUBERNETES = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def assert_is_a_sweep(arguments):
    flags = dict(argument[2:].split("=", 1) for argument in arguments)
    assert flags.keys() <= flags_of(ROOT / "programs" / "sweep.py")
    for name in ("config", "study"):
        assert name not in flags or (ROOT / config_file(flags[name])).is_file()


def test_job_array_trains_parts_of_a_study():
    text = (FOLDER / "job_array.sh").read_text().replace("\\\n", "")
    tasks = re.search(r"--array=1-(\d+)", text)[1]
    (command,) = [line for line in text.splitlines() if "programs/sweep.py" in line]
    _, _, *arguments = shlex.split(command)
    assert_is_a_sweep(arguments)
    assert f"--part=$SLURM_ARRAY_TASK_ID/{tasks}" in arguments


def containers():
    for found in KUBERNETES:
        if template := found["spec"].get("template"):
            yield from template["spec"]["containers"]


def test_kubernetes_has_a_scheduler_workers_and_a_study():
    commands = {container["name"]: container["command"] for container in containers()}
    assert commands["scheduler"][:2] == ["dask", "scheduler"]
    worker = commands["worker"]
    assert worker[:3] == ["dask", "worker", "scheduler:8786"] and "--nthreads=1" in worker
    program, name, *arguments = commands["study"]
    assert (program, name) == ("tff-pfl", "sweep")
    assert_is_a_sweep(arguments)
    assert f"--scheduler={worker[2]}" in arguments


@pytest.mark.parametrize("mounted", ["worker", "study"])
def test_workers_and_the_study_share_the_folder_of_runs(mounted):
    (mounts,) = [it["volumeMounts"] for it in containers() if it["name"] == mounted]
    assert mounts == [{"name": "runs", "mountPath": "/work/runs"}]


def test_image_is_made_by_targets_that_exist():
    text = (ROOT / "Dockerfile").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in (re.search(r"ARG TARGET=(\w+)", text)[1], "gpu"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make --directory=/tff_pfl $TARGET" in text

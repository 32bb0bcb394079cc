"""What the parts find, on the CPU and at toy sizes."""

import json
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from gpu import (
    CheckError,
    Report,
    Task,
    device,
    long_training,
    memory,
    rounds,
    suites,
    trainings,
)
from tests.runs import ROOT, run_python
from tff_pfl import experiment

PROGRAM = "programs/gpu_check.py"


@pytest.fixture
def report(tmp_path):
    return Report(tmp_path / "part.json", part=0, name="", devices="CPU")


def task(part, tmp_path, devices="CPU", seconds=600.0):
    return Task(part, str(tmp_path), str(ROOT), devices, seconds, time.time())


@pytest.mark.slow
def test_the_device_computes_what_numpy_does(tmp_path):
    done = run_python(PROGRAM, f"--output_dir={tmp_path}", "--devices=CPU", "--parts=1")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    content = json.loads((tmp_path / "part1_device.json").read_text())
    assert content["status"] == "complete"
    records = {record["what"]: record for record in content["records"]}
    assert records["TensorFlow imported"]["seconds_from_start"] > 0
    assert records["TensorFlow imported"]["value"] == tf.__version__
    assert 0 <= records["first product"]["relative_error"] < 1e-5
    assert records["first product"]["seconds_from_start"] < 60
    assert {"convolution", "gradient of a convolution", "product by XLA"} <= set(records)
    assert records["256 x 256 in bfloat16"]["relative_error"] > 1e-5
    assert "tensorflow_federated" not in (tmp_path / "part1_device.log").read_text()
    for what in ("first product", "256 x 256 in float32"):
        assert what in done.stdout


def test_a_wrong_product_is_found(tmp_path, report):
    expected = np.eye(3)
    device._check(task(1, tmp_path), report, "right", expected + 1e-6, expected)
    for wrong in (expected + 1e-3, np.full([3, 3], np.nan)):
        with pytest.raises(CheckError, match="^wrong: relative error"):
            device._check(task(1, tmp_path), report, "wrong", wrong, expected)
        assert "error" in report.find("wrong")
    assert "error" not in report.find("right")


def test_opened_libraries_are_those_of_cuda(monkeypatch, tmp_path):
    maps = [
        "7f00-7f01 r-xp 00000000 08:01 1   /opt/nvidia/cublas/lib/libcublas.so.11",
        "7f01-7f02 r--p 00000000 08:01 1   /opt/nvidia/cublas/lib/libcublas.so.11",
        "7f02-7f03 r-xp 00000000 08:01 2   /usr/lib/libcuda.so.535.1",
        "7f03-7f04 r-xp 00000000 08:01 3   /usr/lib/libc.so.6",
        "7f04-7f05 rw-p 00000000 00:00 0",
    ]
    (tmp_path / "maps").write_text("\n".join(maps))
    monkeypatch.setattr(device, "_MAPS", tmp_path / "maps")
    cublas, cuda = "/opt/nvidia/cublas/lib/libcublas.so.11", "/usr/lib/libcuda.so.535.1"
    assert device.opened_libraries() == [cublas, cuda]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'NVIDIA H200, 550.54, 143771 MiB, 9.0'", "NVIDIA H200, 550.54, 143771 MiB, 9.0"),
        ("echo 'no devices were found' >&2; exit 6", "no devices were found"),
        ("exec /bin/sleep 9", "nvidia-smi did not answer within 0.2 s"),
    ],
)
def test_what_the_driver_says(monkeypatch, tmp_path, script, said):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(device, "_SMI_SECONDS", 0.2)
    monkeypatch.setattr(device, "_DRIVER_FILE", tmp_path / "none")
    assert device.driver() == said


@pytest.mark.parametrize("part", [device, suites, rounds, trainings])
def test_no_gpu_is_said_before_anything_is_measured_without_it(monkeypatch, tmp_path, report, part):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [])
    with pytest.raises(CheckError, match="TensorFlow lists no GPU"):
        part.run(task(1, tmp_path, devices="GPU"), report)


@pytest.mark.slow
def test_rounds_are_measured_beside_the_bare_loop(monkeypatch, tmp_path, report):
    monkeypatch.setattr(rounds, "_MODELS", {"linear": rounds._MODELS["linear"]})
    monkeypatch.setattr(rounds, "_RUNTIMES", ("tff_pfl_graph_vectorized",))
    rounds.run(task(3, tmp_path), report)
    bare, *others = report["records"]
    contenders = [record["what"].removeprefix("2 linear float32 ") for record in report["records"]]
    assert contenders == ["bare_tensorflow", *rounds._RUNTIMES]
    for record in report["records"]:
        assert record["seconds_per_round"] > 0
        assert record["memory_mib"] > 10
        assert record["first_round_loss"] == pytest.approx(bare["first_round_loss"], rel=1e-3)
    for record in others:
        ratio = record["seconds_per_round"] / bare["seconds_per_round"]
        assert record["times_bare"] == pytest.approx(ratio)
    report.end(1.0)
    assert (report["status"], report["left_out"]) == ("complete", [])
    measured = report["records"]
    rounds.run(task(3, tmp_path), report)
    assert report["records"] == measured  # nothing is measured again


def test_rounds_without_time_are_left_out_by_name(tmp_path, report):
    rounds.run(task(3, tmp_path, seconds=0.0), report)
    assert report["left_out"][0] == "2 linear float32 bare_tensorflow: 0 s were left"
    assert len(report["left_out"]) == 4 + 2 + 2
    report.end(1.0)
    assert (report["status"], report["records"]) == ("partial", [])


def test_large_cohorts_are_judged_by_smaller_ones(tmp_path, report):
    point = rounds._Point(100, "cnn", "TF32", "bare_tensorflow")
    refusal = lambda: rounds._refusal(task(3, tmp_path, seconds=100.0), report, point)  # noqa: E731
    assert refusal() is None
    figures = {"first_round_seconds": 3.0}
    report.add(point.of(clients=10).name, seconds_per_round=4.0, **figures)  # 83 s of 90
    assert refusal() is None
    report.add(point.of(clients=10).name, seconds_per_round=5.0, **figures)
    assert refusal() == "90 s were left"
    report.add(point.of(clients=10).name, out_of_memory="of 10 GiB")
    assert "memory" in refusal()


def test_a_contender_that_fails_does_not_stop_the_others(monkeypatch, tmp_path, report):
    def fails(workload, x, y):
        raise tf.errors.InvalidArgumentError(None, None, "no such kernel")

    def too_large(workload, x, y):
        raise tf.errors.ResourceExhaustedError(None, None, "of 10 GiB")

    changes = {"tff_pfl_graph_loop": fails, "tff_pfl_graph_xla": too_large}
    changes["bare_tensorflow"] = lambda workload, x, y: lambda: 2.0
    changes["tff_pfl_graph_vectorized"] = lambda workload, x, y: lambda: 30.0  # other work
    monkeypatch.setattr(rounds, "CONTENDERS", rounds.CONTENDERS | changes)
    monkeypatch.setattr(rounds, "_MODELS", {"linear": rounds._MODELS["linear"]})
    monkeypatch.setattr(rounds, "gc", mock.Mock())  # nothing is measured
    rounds.run(task(3, tmp_path), report)
    bare, loop, vectorized, xla = report["records"]
    assert "error" not in bare
    assert loop["error"] == "InvalidArgumentError: no such kernel"
    assert vectorized["error"].startswith("DifferentWorkError: ")
    assert xla["out_of_memory"] == "of 10 GiB"
    report.end(1.0)
    assert report["status"] == "failed"
    assert "InvalidArgumentError: no such kernel" in report.table()


def test_the_peak_is_of_what_came_after_the_reset():
    memory.reset_peak()
    before = memory.peak_mib()
    np.ones([2**27], np.uint8)  # 128 MiB, for a moment
    peak = memory.peak_mib()
    assert peak > before + 100
    memory.reset_peak()
    assert memory.peak_mib() < peak - 100


JUNIT = """<testsuites><testsuite>
<testcase name="test_a[CPU]"/>
<testcase name="test_a[GPU]">{}</testcase>
<testcase name="test_b"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("devices", "outcome", "counts", "error"),
    [
        ("GPU", "", (3, 0, 0), None),
        ("CPU", "<skipped/>", (2, 0, 1), None),
        ("GPU", "<skipped/>", (2, 0, 1), "skipped, though there is a GPU: test_a[GPU]"),
        ("GPU", "<failure/>", (2, 1, 0), "failed: test_a[GPU]"),
        ("GPU", "<failure/><error/>", (2, 1, 0), "failed: test_a[GPU]"),
    ],
)
def test_outcome_of_a_suite(tmp_path, devices, outcome, counts, error):
    (tmp_path / "junit.xml").write_text(JUNIT.format(outcome))
    figures = suites._outcome(tmp_path / "junit.xml", devices)
    assert tuple(figures[key] for key in ("passed", "failed", "skipped")) == counts
    assert figures.get("error") == error


def test_suites_are_run_where_they_are_beside_it(tmp_path, report):
    suites.run(Task(2, str(tmp_path), str(tmp_path), "GPU", 60.0, time.time()), report)
    report.end(1.0)
    assert (report["status"], report["records"]) == ("complete", [])
    assert report["notes"] == [f"no tests were run: {tmp_path} has no tests/runtime"]


@pytest.mark.parametrize(
    ("loss", "accuracy", "said"),
    [
        (1.0005, 0.69, None),
        (1.002, 0.7, "the first round's training losses are 1.002 and 1.0"),
        (float("nan"), 0.7, "the first round's training losses are nan and 1.0"),
        (1.0, 0.73, "the accuracies are 0.73 and 0.7"),
    ],
)
def test_what_differs_by_more_than_rounding(loss, accuracy, said):
    on_cpu = {"what": "", "first_loss": 1.0, "accuracy": 0.7}
    assert (
        trainings._difference(on_cpu | {"first_loss": loss, "accuracy": accuracy}, on_cpu) == said
    )


def test_the_first_data_set_that_is_there(monkeypatch, tmp_path, report):
    on_gpu = task(4, tmp_path, devices="GPU")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(CheckError, match="None of cifar10, fashion_mnist is in TFDS_DATA_DIR"):
        trainings.data_set(on_gpu, report, "cifar10", "fashion_mnist")
    (tmp_path / "fashion_mnist").mkdir()
    assert trainings.data_set(on_gpu, report, "cifar10", "fashion_mnist") == "fashion_mnist"
    assert report["notes"] == [f"cifar10 is not in {tmp_path}: on fashion_mnist instead"]
    (tmp_path / "cifar10").mkdir()
    assert trainings.data_set(on_gpu, report, "cifar10", "fashion_mnist") == "cifar10"
    assert trainings.data_set(task(4, tmp_path), report, "cifar10") == "digits"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_parts_on_the_cpu(tmp_path):
    done = run_python(PROGRAM, f"--output_dir={tmp_path}", "--devices=CPU", TFDS_DATA_DIR="")
    assert done.returncode == 0, done.stdout + done.stderr
    contents = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("part*.json"))]
    assert [content["part"] for content in contents] == [1, 2, 3, 4, 5]
    assert {content["status"] for content in contents} == {"complete"}
    names = [{record["what"] for record in content["records"]} for content in contents]
    assert names[1] == {"devices", "conformance"}
    assert "2 resnet18 float32 bare_keras" in names[2]
    assert {f"{a} on {p}" for a in trainings.ALGORITHMS for p in ("two CPUs", "CPU")} == names[3]
    assert names[4] == {"plgu_lf with ResNet-18"}


def test_parts_are_numbers_of_parts():
    done = run_python(PROGRAM, "--output_dir=nowhere", "--parts=1,6")
    assert done.returncode != 0
    assert "Parts are 1, 2, 3, 4, 5." in done.stderr


# A training that does not end by itself.
ENDLESS = """
import sys, time
from tff_pfl.runtime.startup import prepare_process

prepare_process()
from gpu import Report, Task, long_training

config_of = long_training._config

def endless(task, report):
    config = config_of(task, report)
    config.rounds = long_training._ENDLESS
    return config

long_training._config = endless
folder, root = sys.argv[1:]
report = Report(f"{folder}/part.json", part=5, name="", devices="CPU")
long_training.run(Task(5, folder, root, "CPU", float(SECONDS), time.time()), report)
report.end(0.0)
"""


@pytest.mark.slow
def test_the_long_training_ends_with_its_time(tmp_path):
    start = time.monotonic()
    path = f"{ROOT}:{ROOT / 'programs'}"
    code = ENDLESS.replace("SECONDS", "60")
    done = run_python("-c", code, tmp_path, ROOT, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - start < 80
    content = json.loads((tmp_path / "part.json").read_text())
    assert content["status"] == "complete"
    (record,) = content["records"]
    assert record["rounds"] > 2
    assert len(record["evaluations"]) >= record["rounds"] - 1  # one a round
    assert record["accuracy"] == record["evaluations"][-1]["accuracy"]


@pytest.mark.parametrize("devices", ["CPU", "GPU"])
def test_configs_are_valid(monkeypatch, tmp_path, report, devices):
    monkeypatch.setattr(trainings, "data_set", lambda *_: "digits")
    monkeypatch.setattr(long_training, "data_set", lambda *_: "digits")
    of = task(4, tmp_path, devices)
    for algorithm in trainings.ALGORITHMS:
        config = trainings._config(algorithm, of, report)
        experiment.check_config(config)
        assert config.rounds == {"CPU": 2, "GPU": 20}[devices]
    experiment.check_config(long_training._config(of, report))

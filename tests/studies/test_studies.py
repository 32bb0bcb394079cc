"""Studies: which runs there are, that none is run twice, and the table they end in."""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.reports.hand_written import write_run
from tests.runs import ROOT, run_main, tiny_config, train_run, wait_until, write_study
from tff_pfl import studies
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import compared
from tff_pfl.studies import Study, StudyError, Variant, tied

STUDY = Study(
    "Two",
    {
        "FedAvg": Variant("configs/digits.py:fedavg"),
        "Ditto, lambda 1": Variant("configs/digits.py:ditto", {"algorithm.lambda_": 1.0}),
    },
    seeds=(0, 7),
    settings={"rounds": 3, "algorithm.lambda_": 2.0},
)
# Takes the place of the training program: it notes that it was started, and leaves a summary.
PROGRAM = """
import json, os, pathlib, sys, time
flags = dict(flag[2:].partition("=")[::2] for flag in sys.argv[1:])
folder = pathlib.Path(flags["output_dir"])
print("started", flush=True)
with open(pathlib.Path(__file__).with_name("started.txt"), "a") as file:
    rest = [flag for flag in sys.argv[1:] if "output_dir" not in flag and flag != "--resume"]
    file.write(f"{' '.join(rest)} by {os.getpid()}\\n")
if flags.get("config.fails") == "True":
    sys.exit("It failed.")
while flags.get("config.waits") == "True":
    time.sleep(0.01)
(folder / "checkpoint" if flags.get("config.saves") else folder).mkdir(parents=True, exist_ok=True)
rounds, rate = int(flags.get("config.rounds", 3)), float(flags.get("config.rate", 0))
# The lowest rate is the best at last, but not at first; of infinity there is no number.
accuracy = rounds * (10 - rate) if rounds > 2 else rate
metrics = {
    "personalized/local_test/accuracy_mean": accuracy,
    "personalized/local_test/loss_mean": -accuracy,
}
evaluation = {"round_num": rounds, "metrics": metrics}
summary = {"title": "t", "final": evaluation, "best": evaluation, "seconds": 1.0}
(folder / "summary.json").write_text(json.dumps(summary))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def started(program):
    """The flags of all runs so far, without `--config.`."""
    lines = program.with_name("started.txt").read_text().splitlines()
    return sorted(line.partition(" by ")[0].replace("--config.", "") for line in lines)


def test_the_runs_of_a_study():
    runs = list(STUDY.runs())
    assert [(run.label, run.seed) for run in runs] == [
        ("FedAvg", 0),
        ("Ditto, lambda 1", 0),
        ("FedAvg", 7),
        ("Ditto, lambda 1", 7),
    ]
    assert [run.folder for run in runs[1::2]] == ["Ditto_lambda_1/seed0", "Ditto_lambda_1/seed7"]
    assert runs[3].flags == (
        "--config=configs/digits.py:ditto",
        "--config.rounds=3",
        "--config.algorithm.lambda_=1.0",  # its own, and not that of all
        "--config.seed=7",
    )


def test_no_run_is_run_twice(tmp_path, program):
    folder = tmp_path / "study"
    assert studies.run_study(STUDY, folder, program, jobs=2) == []
    first = started(program)
    assert len(first) == 4
    (folder / "FedAvg/seed7/summary.json").unlink()
    (folder / "FedAvg/seed0/summary.json").write_text("{")  # damaged: the program may mend it
    assert studies.run_study(STUDY, folder, program) == []
    fedavg = [flags for flags in first if "fedavg" in flags]
    assert started(program) == sorted(first + fedavg)
    assert (folder / "FedAvg/seed7.log").read_text() == "started\n"


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, program, capsys):
    variants = {"bad": Variant("a.py", {"fails": True}), "good": Variant("b.py")}
    failed = studies.run_study(Study("Both", variants), tmp_path / "study", program)
    assert [run.folder for run in failed] == ["bad/seed0"]
    assert "It failed." in (tmp_path / "study/bad/seed0.log").read_text()
    assert (tmp_path / "study/good/seed0/summary.json").exists()
    assert "bad/seed0 failed: It failed.\n" in "".join(capsys.readouterr())


def test_checkpoints_of_finished_runs_can_be_discarded(tmp_path, program):
    folder = tmp_path / "study"
    variants = {name: Variant(f"{name}.py", {"saves": True}) for name in "ab"}
    one, two = (Study("One or two", variants, seeds=range(n + 1)) for n in range(2))
    studies.run_study(one, folder, program)
    assert len(list(folder.rglob("checkpoint"))) == 2
    failing = Study("Failing", {**variants, "bad": Variant("a.py", {"fails": True})}, two.seeds)
    for left in (folder / "bad/seed0/checkpoint", folder / "elsewhere/checkpoint"):
        left.mkdir(parents=True)
    studies.run_study(failing, folder, program, keep_checkpoints=False)
    # Of those before as well, but not of what failed or is none of the study's.
    found = {path.parent.relative_to(folder).as_posix() for path in folder.rglob("checkpoint")}
    assert found == {"bad/seed0", "elsewhere"}
    before = started(program)
    assert studies.run_study(two, folder, program, keep_checkpoints=False) == []
    assert started(program) == before


def test_runs_of_other_settings_are_not_taken_for_those_asked_for(tmp_path, program):
    variants = {"one": Variant("a.py", {"rounds": 3})}
    studies.run_study(Study("Three", variants), tmp_path, program)
    other = Study("Four", {"one": Variant("a.py", {"rounds": 4})})
    with pytest.raises(StudyError, match="(?s)other settings,.*rounds=3.*and not.*rounds=4"):
        studies.run_study(other, tmp_path, program)
    assert '"Three"' in (tmp_path / "variants.json").read_text()
    more = Study("More", {**variants, "two": Variant("b.py")}, seeds=(0, 1))
    assert studies.run_study(more, tmp_path, program) == []
    assert len(started(program)) == 4


def test_one_study_at_a_time_is_run_in_a_folder(tmp_path, program):
    folder = tmp_path / "study"
    waiting = Study("Waiting", {"one": Variant("a.py", {"waits": True})})
    with concurrent.futures.ThreadPoolExecutor() as executor:
        first = executor.submit(studies.run_study, waiting, folder, program)
        log = program.with_name("started.txt")
        wait_until(functools.partial(has_started, log))
        with pytest.raises(StudyError, match="run in .*/study already. Wait until it is done"):
            studies.run_study(waiting, folder, program)
        os.kill(int(log.read_text().rpartition(" ")[2]), signal.SIGTERM)
        assert [run.folder for run in first.result(timeout=30)] == ["one/seed0"]
    another = Study("Another", {"two": Variant("a.py")})
    assert studies.run_study(another, folder, program) == []


def test_what_failed_before_it_had_results_can_have_other_settings(tmp_path, program):
    folder = tmp_path / "study"
    failing = Study("Failing", {"one": Variant("a.py", {"fails": True})})
    assert studies.run_study(failing, folder, program)
    mended = Study("Mended", {"one": Variant("a.py", {"rounds": 3})})
    assert studies.run_study(mended, folder, program) == []
    assert started(program) == ["--config=a.py fails=True seed=0", "--config=a.py rounds=3 seed=0"]
    with pytest.raises(StudyError, match="(?s)other settings,.*rounds=3.*and not.*fails=True"):
        studies.run_study(failing, folder, program)


def test_an_interruption_ends_the_runs(tmp_path, program):
    variants = {str(i): Variant("a.py", {"waits": True}) for i in range(3)}
    timer = threading.Timer(0.0, interrupt_when, [tmp_path / "started.txt"])
    timer.start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        studies.run_study(Study("Waiting", variants), tmp_path / "study", program)
    timer.join()
    assert time.monotonic() - before < 60
    assert len(started(program)) == 1
    run = int((tmp_path / "started.txt").read_text().rpartition(" ")[2])
    assert not cmdline(run)


def interrupt_when(log):
    wait_until(functools.partial(has_started, log))
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def has_started(log):
    return log.exists() and log.read_text().endswith("\n")


def test_a_run_ends_with_the_process_that_started_it(tmp_path, program):
    """It would be in the way of the same study, started again."""
    command = [tied.__file__, program, "--config=a.py", "--config.waits=True"]
    command.append(f"--output_dir={tmp_path / 'run'}")
    script = (
        "import os, subprocess, sys\n"
        f"tied, *argv = {list(map(str, command))!r}\n"
        "subprocess.run([sys.executable, tied, str(os.getpid()), *argv])\n"
    )
    study = subprocess.Popen([sys.executable, "-c", script])
    log = tmp_path / "started.txt"
    wait_until(functools.partial(has_started, log))
    run = int(log.read_text().rpartition(" ")[2])
    assert cmdline(run)
    study.kill()
    study.wait()
    wait_until(lambda: not cmdline(run))
    late = subprocess.run([sys.executable, tied.__file__, str(study.pid), program])
    assert late.returncode == 1  # the process had ended before


def cmdline(process):
    """Nothing, of a process that has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variants": {}}, "variants must be one Variant or more, by labels, got {}"),
        ({"variants": ["a.py"]}, r"variants must be .* by labels, got \['a.py'\]"),
        ({"variants": {"a": "a.py"}}, "variant 'a' must be a Variant, got 'a.py'"),
        ({"variants": {"a": Variant("x", {"seed": 1})}}, "a study has seeds, a run for each"),
        ({"settings": {"seed": 1}}, "a study has seeds, a run for each"),
        ({"seeds": ()}, r"has one seed or more, whole numbers in a tuple, got \(\)"),
        ({"seeds": 3}, "has one seed or more, whole numbers in a tuple, got 3"),
        ({"seeds": [np.float32(1)]}, "has one seed or more, whole numbers"),
        ({"seeds": (0, 1.5)}, "has one seed or more, whole numbers"),
        ({"seeds": (0, 1, 0)}, "has each seed once"),
        ({"baseline": "fedavg"}, "baseline is no variant of the study: 'fedavg'"),
        ({"variants": {"a b": Variant("x"), "a,b": Variant("y")}}, "'a b' needs a name"),
        ({"variants": {"": Variant("x")}}, "'' needs a name"),
    ],
)
def test_studies_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        Study(**{"title": "t", "variants": {"a": Variant("x")}, **arguments})


def test_seeds_of_numpy():
    runs = Study("t", {"a": Variant("x")}, seeds=list(np.arange(2))).runs()
    assert [(run.folder, run.flags[1]) for run in runs] == [
        ("a/seed0", "--config.seed=0"),
        ("a/seed1", "--config.seed=1"),
    ]


def test_settings_that_are_none():
    with pytest.raises(ValueError, match="settings are a mapping, such as .*, got 'rounds'"):
        Variant("x", "rounds")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("import no_such_module", ValueError, r"study.py fails: ModuleNotFoundError: .*, line 1\)"),
        ("x =", ValueError, r"study.py fails: SyntaxError: "),
        ("def get_study():\n  return {}['a']", ValueError, r"fails: KeyError: 'a' .*py, line 2\)"),
        ("raise ValueError('No.')", ValueError, r"^No\.$"),
        (None, FileNotFoundError, "There is no study"),
        ("x = 1", ValueError, "defines no function get_study"),
        ("def get_study(): return 3", ValueError, "returns no Study, but 3"),
    ],
)
def test_files_that_are_no_studies(tmp_path, content, error, message):
    path = tmp_path / "study.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message):
        studies.load_study(path)


def test_a_file_of_several_studies(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(
        "from tff_pfl.studies import Study, Variant\n"
        "def get_study(choice): return Study(choice, {'a': Variant('x')})"
    )
    assert studies.load_study(f"{path}:two,three").title == "two,three"
    with pytest.raises(ValueError, match="needs a choice, as in FILE:CHOICE"):
        studies.load_study(path)
    path.write_text("def get_study(): pass")
    with pytest.raises(ValueError, match="takes no choice, found '.*study.py:two'"):
        studies.load_study(f"{path}:two")


_CHOICES = {"pfedmb_moon.py": ("pairs", "two_classes", "dirichlet")}
_OF_THE_REPOSITORY = [
    ":".join([str(path), *choice])
    for path in sorted((ROOT / "configs/studies").glob("*.py"))
    for choice in ([(choice,) for choice in _CHOICES.get(path.name, ())] or [()])
]


@pytest.mark.parametrize("source", _OF_THE_REPOSITORY)
def test_the_studies_of_the_repository(source):
    study = studies.load_study(source)
    assert len({run.folder for run in study.runs()}) == len(study.variants) * len(study.seeds)
    for variant in study.variants.values():
        assert (ROOT / variant.config.partition(":")[0]).is_file()


def test_the_results_of_runs(tmp_path):
    train_run(tmp_path / "FedAvg/seed7", tiny_config("fedavg", rounds=3, seed=7))
    comparison = studies.comparison_of_study(STUDY, tmp_path)
    (run,) = comparison.results["FedAvg"]
    assert comparison.results["Ditto, lambda 1"] == []
    assert comparison.planned == {"FedAvg": 2, "Ditto, lambda 1": 2}
    assert run.seed == 7 and run.final.round_num == 3
    assert run.final.mean("accuracy") == run.final.mean("accuracy", "global") > 0
    assert run.bytes_up == run.bytes_down + 4
    assert 0 < run.round_seconds < 100
    studies.write_csv(tmp_path / "results.csv", comparison)
    head, row = (tmp_path / "results.csv").read_text().splitlines()
    assert head == "label,seed,personalized,global,bytes_down,bytes_up,round_seconds"
    accuracy = run.final.mean("accuracy")
    expected = f"FedAvg,7,{accuracy},{accuracy},{run.bytes_down},{run.bytes_up},"
    assert row == f"{expected}{run.round_seconds}"


def test_a_table_is_written_completely_or_not_at_all(tmp_path):
    comparison = compared("t", {"a": [write_run(tmp_path / "a", [0.5])]})
    path = tmp_path / "results.csv"
    studies.write_csv(path, comparison)
    before = path.read_text()
    broken = dataclasses.replace(comparison, results={"a": [None]})
    with pytest.raises(AttributeError):
        studies.write_csv(path, broken)
    assert path.read_text() == before


def test_what_is_compared(tmp_path, program):
    studies.run_study(STUDY, tmp_path / "study", program)
    for path in (tmp_path / "study").rglob("summary.json"):
        path.unlink()  # of the program that takes the place of training: a table needs more
    write_run(tmp_path / "study/Ditto_lambda_1/seed7", [0.5, 1.0], seed=7)
    found = studies.comparison_of([str(tmp_path / "study")])
    assert (found.title, found.baseline) == ("Two", "FedAvg")
    assert list(found.results) == list(STUDY.variants)
    assert [run.seed for run in found.results["Ditto, lambda 1"]] == [7]
    write_run(tmp_path / "x", [0.5], seed=0)
    for x in (f"x:{tmp_path / 'x'}", f"{tmp_path / 'x'}/"):
        more = studies.comparison_of([str(tmp_path / "study"), x])
        assert list(more.finished) == ["x", "Ditto, lambda 1"]
    (tmp_path / "damaged").mkdir()
    (tmp_path / "y").mkdir()
    (tmp_path / "damaged" / "variants.json").write_text("{}")
    with pytest.raises(OutputDirectoryError, match="variants.json is damaged: 'variants'"):
        studies.comparison_of([str(tmp_path / "damaged")])
    mistakes = {
        "y has no variants.json of a study, and no config.json of a run": [str(tmp_path / "y")],
        "'FedAvg' is the label of two variants": [
            str(tmp_path / "study"),
            f"FedAvg:{tmp_path / 'x'}",
        ],
        "A study's file is followed by its directory": ["study.py"],
        "defines no function get_study": [str(program), str(tmp_path)],
        "There is no directory nope of a study": ["configs/studies/methods_on_digits.py", "nope"],
    }
    program.write_text("")
    for message, arguments in mistakes.items():
        with pytest.raises(StudyError, match=message):
            studies.comparison_of(arguments)


def test_the_program(tmp_path, monkeypatch):
    file = write_study(tmp_path, f"{tmp_path}/a.py:choice")
    missing = run_main("sweep.py", f"--study={file}", f"--output_dir={tmp_path / 'out'}")
    assert missing.stderr.startswith(f"error: The config of 'a', '{tmp_path}/a.py', is not there.")
    assert missing.returncode == 1 and not (tmp_path / "out").exists()
    (tmp_path / "a.py").write_text(
        "from tests.runs import tiny_config\ndef get_config(_): return tiny_config('fedavg')"
    )
    finished = tmp_path / "out/a/seed0"
    train_run(finished, tiny_config("fedavg"))
    ended = run_main("sweep.py", f"--study={file}", f"--output_dir={tmp_path / 'out'}")
    assert ended.returncode == 0
    assert ended.stdout == (tmp_path / "out/table.md").read_text()
    assert ended.stdout.splitlines()[2].startswith("| a | ")
    ended_table = run_main("report.py", "table", file, tmp_path / "out", "--format=latex")
    assert (ended_table.returncode, ended_table.stderr) == (0, "")
    assert r"\begin{tabular}{lrrrrrr}" in ended_table.stdout
    assert len(pathlib.Path(tmp_path / "out/results.csv").read_text().splitlines()) == 2
    ended = run_main("sweep.py", f"--study={file}x", f"--output_dir={tmp_path / 'out'}")
    assert ended.returncode == 1 and "There is no study" in ended.stderr
    for name in ("study.json", "variants.json"):
        (tmp_path / "out" / name).write_text("{")
    ended = run_main("sweep.py", f"--study={file}", f"--output_dir={tmp_path / 'out'}")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"error: {tmp_path / 'out/study.json'} is damaged: " in ended.stderr

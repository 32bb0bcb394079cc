"""Tests the versions and machines that runs record, and warnings about other ones."""

import concurrent.futures
import getpass
import importlib
import json
import pathlib
import platform
import shutil
import socket

import numpy as np
import pytest

from tests.runs import ROOT, tiny_config, train_run
from tff_pfl import runtime
from tff_pfl.config import run_of
from tff_pfl.experiment import OutputDirectoryError, RunDirectory, RunFiles, Session, versions


@pytest.fixture
def directory(tmp_path):
    with RunDirectory(tmp_path, {}) as directory:
        yield directory


def pretend(monkeypatch, **others):
    """Replaces some current versions until the end of the test."""
    now = versions.current_versions() | others
    monkeypatch.setattr(versions, "current_versions", lambda: now)
    return now


def test_run_records_versions_and_machine(tmp_path, capsys):
    run_dir = train_run(tmp_path / "run", tiny_config(rounds=1))
    assert RunFiles(run_dir).sessions == [Session(0, versions.current_versions())]
    assert "\n  versions.json\n" in capsys.readouterr().out
    (session,) = json.loads((run_dir / "versions.json").read_text())["sessions"]
    assert session["versions"]["python"] == platform.python_version()
    assert session["versions"]["numpy"] == np.__version__
    assert session["versions"]["devices"] == ["CPU:0"]
    assert session["versions"]["onednn"] in (True, False)
    assert session["versions"]["cores"] >= 1 and session["versions"]["processor"]
    assert len(session["versions"]["commit"] or 40 * "0") == 40


def test_versions_do_not_name_the_machine():
    text = json.dumps(versions.current_versions())
    private = [socket.gethostname(), getpass.getuser(), str(ROOT), str(pathlib.Path.home())]
    assert [word for word in private if word in text] == []


@pytest.mark.thorough
def test_run_resumed_with_other_versions_prints_a_warning(tmp_path, monkeypatch, capsys):
    run_dir = train_run(tmp_path / "run", tiny_config(rounds=1))
    metrics = (run_dir / "metrics.csv").read_text()
    train_run(run_dir, tiny_config(rounds=2), resume=True)
    assert len(RunFiles(run_dir).sessions) == 1  # the same versions
    pretend(monkeypatch, devices=None)  # as in Python without a context
    assert versions.other_versions(run_dir) == []
    assert "warning" not in capsys.readouterr().out
    now = pretend(monkeypatch, tensorflow="1.0", devices=["GPU:0, of another kind"])
    train_run(run_dir, tiny_config(rounds=3), resume=True)
    assert RunFiles(run_dir).sessions[1:] == [Session(2, now)]
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "warning" in x]
    assert line.startswith("round 2: warning: the run continues with other versions")
    assert line.endswith("; devices ['CPU:0'] then, ['GPU:0, of another kind'] now")
    assert " then, 1.0 now" in line and "numpy" not in line
    after = (run_dir / "metrics.csv").read_text()
    assert after.startswith(metrics) and "1.0 now" not in after


def test_versions_of_all_sessions_are_recorded_in_order(directory, monkeypatch):
    assert versions.record_versions(directory, 0) == []
    first = pretend(monkeypatch)
    second = pretend(monkeypatch, commit="abc", changed=True)
    found = versions.record_versions(directory, 4)
    assert found == [
        f"commit {first['commit']} then, abc now",
        *([f"changed {first['changed']} then, True now"] if not first["changed"] else []),
    ]
    pretend(monkeypatch, **first)
    assert len(versions.record_versions(directory, 6)) == len(found)
    sessions = [Session(0, first), Session(4, second), Session(6, first)]
    assert RunFiles(directory.path).sessions == sessions


def test_code_of_covers_the_whole_package_of_a_user(directory, tmp_path, monkeypatch):
    """Checks that the module's whole package and a module that it imports count."""
    package = tmp_path / "package_of_a_user"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "methods.py").write_text("from package_of_a_user import parts")
    (package / "parts.py").write_text(
        "def scaled(x):\n    import helper_of_a_user as helper\n    return helper.SCALE * x"
    )
    (tmp_path / "helper_of_a_user.py").write_text("import json, numpy, tff_pfl\nSCALE = 2.0")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("package_of_a_user.methods").parts.scaled(1.0)
    modules = ("package_of_a_user.methods", "tff_pfl.algorithms.fedavg")
    before = versions.code_of(modules)
    names = ("__init__", "methods", "parts")
    packaged = [f"code of package_of_a_user.{name}" for name in names]
    assert list(before) == ["code of helper_of_a_user", *packaged]
    assert {len(digest) for digest in before.values()} == {16}
    assert versions.record_versions(directory, 2, modules) == []
    (package / "parts.py").write_text("FACTOR = -1.0")
    key, after = "code of package_of_a_user.parts", versions.code_of(modules)
    changes = [f"{key} {before[key]} then, {after[key]} now"]
    assert versions.other_versions(directory.path, modules) == changes
    assert versions.record_versions(directory, 3, modules) == changes
    assert versions.other_versions(directory.path, modules) == []
    assert [x.rounds_before for x in RunFiles(directory.path).sessions] == [2, 3]


def restored_after(run_dir, path, **recorded):
    """Restores a copy of a run that recorded other versions, in a thread without a context."""
    shutil.copytree(run_dir, path)
    sessions = json.loads((path / "versions.json").read_text())
    sessions["sessions"][-1]["versions"] |= recorded
    (path / "versions.json").write_text(json.dumps(sessions))

    def restore():
        with run_of(path).restored():
            pass

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(restore).result()


@pytest.mark.thorough
def test_run_restored_with_other_versions_or_devices_logs_a_warning(finished_run, tmp_path, caplog):
    restored_after(finished_run(), tmp_path / "same")
    assert caplog.messages == []
    restored_after(finished_run(), tmp_path / "other", numpy="1.0", devices=["GPU:0"])
    assert caplog.messages == [
        f"{tmp_path / 'other'} was computed with other versions or other code, and numbers may "
        f"differ: numpy 1.0 then, {np.__version__} now; devices ['GPU:0'] then, ['CPU:0'] now"
    ]


def test_damaged_versions_are_refused(directory, tmp_path):
    for content in ("{", "{}", '{"sessions": [{"versions": {}}]}', "[]"):
        (tmp_path / "versions.json").write_text(content)
        with pytest.raises(OutputDirectoryError, match="versions.json is damaged: "):
            versions.record_versions(directory, 0)


def test_checkout_has_a_commit_and_whether_it_is_changed(tmp_path, monkeypatch):
    answers = {"rev-parse": "abc", "status": " M tff_pfl/arguments/names.py"}
    monkeypatch.setattr(versions, "_git", lambda folder, command, *rest: answers[command])
    package = tmp_path / "tff_pfl"
    assert versions._checkout(package) == (None, None)  # an installed package
    versions._checkout.cache_clear()
    (tmp_path / ".git").mkdir()
    assert versions._checkout(package) == ("abc", True)
    versions._checkout.cache_clear()
    answers["status"] = ""
    assert versions._checkout(package) == ("abc", False)
    versions._checkout.cache_clear()
    answers |= {"rev-parse": None, "status": None}  # git is missing, or refuses
    assert versions._checkout(package) == (None, None)
    versions._checkout.cache_clear()


def test_versions_have_the_devices(monkeypatch):
    two = ("/device:CPU:0", "/job:worker/replica:0/task:1/device:GPU:0")
    for devices, described in ((two, ["CPU:0", "GPU:0 of worker 1"]), (None, None)):
        monkeypatch.setattr(runtime, "current_devices", lambda found=devices: found)
        assert versions.current_versions()["devices"] == described

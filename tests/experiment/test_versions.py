"""Tests the versions and machines that runs record, and warnings about other ones."""

import concurrent.futures
import getpass
import importlib
import json
import pathlib
import platform
import shutil
import socket
import subprocess

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


def record_others(run_dir, **others):
    """Replaces some of the versions that a run recorded last."""
    file = run_dir / "versions.json"
    recorded = json.loads(file.read_text())
    recorded["sessions"][-1]["versions"] |= others
    file.write_text(json.dumps(recorded))


def test_run_records_versions_and_machine(tmp_path, capsys):
    run_dir = train_run(tmp_path / "run", tiny_config(rounds=1))
    assert RunFiles(run_dir).sessions == [Session(0, versions.current_versions())]
    assert "\n  versions.json\n" in capsys.readouterr().out
    (session,) = json.loads((run_dir / "versions.json").read_text())["sessions"]
    recorded = session["versions"]
    assert recorded["python"] == platform.python_version()
    assert recorded["numpy"] == np.__version__
    assert recorded["devices"] == ["CPU:0"]
    assert recorded["onednn"] in (True, False)
    assert recorded["cores"] >= 1 and recorded["processor"]


def test_versions_do_not_name_the_machine():
    text = json.dumps(versions.current_versions())
    private = [socket.gethostname(), getpass.getuser(), str(ROOT), str(pathlib.Path.home())]
    assert [word for word in private if word in text] == []


@pytest.mark.thorough
def test_run_resumed_with_other_versions_prints_a_warning(tmp_path, capsys):
    run_dir = train_run(tmp_path / "run", tiny_config(rounds=1))
    train_run(run_dir, tiny_config(rounds=2), resume=True)
    assert len(RunFiles(run_dir).sessions) == 1  # the same versions
    record_others(run_dir, devices=None)  # as in Python without a context
    assert versions.other_versions(run_dir) == []
    assert "warning" not in capsys.readouterr().out
    record_others(run_dir, tensorflow="1.0", devices=["GPU:0, of another kind"])
    train_run(run_dir, tiny_config(rounds=3), resume=True)
    assert RunFiles(run_dir).sessions[1:] == [Session(2, versions.current_versions())]
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "warning" in x]
    assert line.startswith("round 2: warning: the run continues with other versions")
    assert line.endswith("; devices ['GPU:0, of another kind'] then, ['CPU:0'] now")
    assert "tensorflow 1.0 then, " in line and "numpy" not in line


def test_code_of_covers_the_whole_package_of_a_user(directory, tmp_path, monkeypatch):
    """Checks that the module's whole package and a module that it imports count."""
    package = tmp_path / "package_of_a_user"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "methods.py").write_text("from package_of_a_user import parts")
    (package / "parts.py").write_text("def helper():\n    import helper_of_a_user")
    (tmp_path / "helper_of_a_user.py").write_text("import json, numpy, tff_pfl")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("package_of_a_user.methods").parts.helper()
    modules = ("package_of_a_user.methods", "tff_pfl.algorithms.fedavg")
    before = versions.code_of(modules)
    assert list(before) == [
        "code of helper_of_a_user",
        *(f"code of package_of_a_user.{name}" for name in ("__init__", "methods", "parts")),
    ]
    assert {len(digest) for digest in before.values()} == {16}
    assert versions.record_versions(directory, 2, modules) == []
    (package / "parts.py").write_text("FACTOR = -1.0")
    key, after = "code of package_of_a_user.parts", versions.code_of(modules)
    changes = [f"{key} {before[key]} then, {after[key]} now"]
    assert versions.other_versions(directory.path, modules) == changes
    assert versions.record_versions(directory, 3, modules) == changes
    assert versions.other_versions(directory.path, modules) == []
    assert [x.rounds_before for x in RunFiles(directory.path).sessions] == [2, 3]


def restore_without_a_context(path):
    def restore():
        with run_of(path).restored():
            pass

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(restore).result()


@pytest.mark.thorough
def test_run_restored_with_other_versions_or_devices_logs_a_warning(finished_run, tmp_path, caplog):
    restore_without_a_context(finished_run())
    assert caplog.messages == []
    other = shutil.copytree(finished_run(), tmp_path / "other")
    record_others(other, numpy="1.0", devices=["GPU:0"])
    restore_without_a_context(other)
    assert caplog.messages == [
        f"{other} was computed with other versions or other code, and numbers may differ: "
        f"numpy 1.0 then, {np.__version__} now; devices ['GPU:0'] then, ['CPU:0'] now"
    ]


def test_damaged_versions_are_refused(directory, tmp_path):
    for content in ("{", "{}", '{"sessions": [{"versions": {}}]}', "[]"):
        (tmp_path / "versions.json").write_text(content)
        with pytest.raises(OutputDirectoryError, match="versions.json is damaged: "):
            versions.record_versions(directory, 0)


def test_checkout_has_a_commit_and_whether_it_is_changed(tmp_path):
    def git(*command):
        user = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *user, *command], cwd=tmp_path, check=True, capture_output=True)

    def checkout():
        versions._checkout.cache_clear()
        return versions._checkout(package)

    package = tmp_path / "tff_pfl"
    package.mkdir()
    (package / "names.py").write_text("")
    assert checkout() == (None, None)  # an installed package
    git("init")
    assert checkout() == (None, True)  # git refuses to name a commit
    git("add", ".")
    git("commit", "--message=First")
    commit, is_changed = checkout()
    assert len(commit) == 40 and not is_changed
    (package / "names.py").write_text("changed")
    assert checkout() == (commit, True)
    versions._checkout.cache_clear()


def test_versions_have_the_devices(monkeypatch):
    two = ("/device:CPU:0", "/job:worker/replica:0/task:1/device:GPU:0")
    monkeypatch.setattr(runtime, "current_devices", lambda: two)
    assert versions.current_versions()["devices"] == ["CPU:0", "GPU:0 of worker 1"]

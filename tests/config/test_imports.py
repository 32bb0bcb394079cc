"""Tests imports of a user's own modules."""

import json
import re
import shutil
import sys

import pytest

from tests.own_modules import own_modules
from tests.runs import run_main
from tff_pfl.config import ConfigError, check_config, config_of_run, default_config, run_of
from tff_pfl.config.imports import import_modules
from tff_pfl.experiment import RunFiles, resolved
from tff_pfl.models import MODELS

MODULE = """
import tensorflow as tf
from tff_pfl.models import MODELS

@MODELS.register("tiny_of_a_user")
def tiny(image_shape, num_classes, *, width=3):
    return tf.keras.Sequential([])
"""


@pytest.fixture
def write(tmp_path):
    """Returns `(path, text)`, which writes a module; imports are undone after the test."""

    def write_module(path, text=MODULE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    with own_modules(tmp_path):
        yield write_module


def test_module_in_a_package_is_imported(write, tmp_path):
    write("a_package_of_a_user/__init__.py", "")
    write("a_package_of_a_user/networks.py")
    import_modules(["a_package_of_a_user.networks"], [str(tmp_path)])
    assert MODELS.options("tiny_of_a_user") == {"width": 3}


def test_module_in_the_working_directory_is_imported(write, tmp_path, monkeypatch):
    write("networks_of_a_user.py")
    monkeypatch.chdir(tmp_path)
    config = default_config(imports="networks_of_a_user")  # a tuple is possible, too
    assert config.imports == ("networks_of_a_user",)
    config.model.name = "tiny_of_a_user"
    check_config(config)


def test_module_may_register_a_name_again(write, tmp_path):
    write("networks_of_a_user.py", MODULE + MODULE)
    for _ in range(2):
        import_modules(["networks_of_a_user"], [str(tmp_path)])
        del sys.modules["networks_of_a_user"]
    assert "tiny_of_a_user" in MODELS


@pytest.mark.parametrize("name", ["networks_of_nobody", "os.networks_of_nobody"])
@pytest.mark.usefixtures("write")
def test_missing_module_is_refused(tmp_path, monkeypatch, name):
    folder = str(tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    config = default_config()
    config.update(imports=(name,), import_path=(folder,))
    start = re.escape(f"config.imports: there is no module {name!r} in {folder}, {tmp_path}")
    with pytest.raises(ConfigError, match=f"^{start}(, .*)?, nor among the installed packages.$"):
        check_config(config)
    with pytest.raises(ConfigError, match=f"^{start}"):
        config_of_run(resolved(config), trust_imports=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\nnothing.x", r"NameError: name 'nothing' is not defined \(FILE, line 2\)"),
        ("\nx = (", r"SyntaxError: '\(' was never closed \(fails_of_a_user.py, line 2\)"),
    ],
)
def test_error_of_a_module_names_its_line(write, tmp_path, text, reason):
    write("fails_of_a_user.py", text)
    reason = reason.replace("FILE", re.escape(str(tmp_path / "fails_of_a_user.py")))
    message = f"^config.imports: module 'fails_of_a_user' fails: {reason}$"
    with pytest.raises(ConfigError, match=message):
        import_modules(["fails_of_a_user"], [str(tmp_path)])


@pytest.fixture
def run_of_a_stranger(write, finished_run, tmp_path):
    """Makes a finished run whose config imports a module from its own folder."""
    run = tmp_path / "run"
    shutil.copytree(finished_run("fedavg", rounds=1), run)
    write("stranger/networks_of_a_user.py", "raise SystemExit('executed')")
    settings = json.loads((run / "config.json").read_text())
    settings |= {"imports": ["networks_of_a_user"], "import_path": [str(tmp_path / "stranger")]}
    (run / "config.json").write_text(json.dumps(settings))
    return run


UNTRUSTED = (
    "The config of the run imports 'networks_of_a_user', from FOLDER, which executes their code. "
    "Pass --trust_imports if you trust the run, or --imports=networks_of_a_user to import your "
)


@pytest.mark.thorough
def test_saved_run_imports_only_trusted_modules(run_of_a_stranger, write, monkeypatch, tmp_path):
    message = re.escape(UNTRUSTED.replace("FOLDER", str(tmp_path / "stranger")))
    path = list(sys.path)
    with pytest.raises(ConfigError, match=message):
        run_of(run_of_a_stranger)
    with pytest.raises(ConfigError, match=message):
        run_of(run_of_a_stranger, trust_imports="networks_of_a_user_and_more")
    assert sys.path == path
    with pytest.raises(SystemExit, match="executed"):
        run_of(run_of_a_stranger, trust_imports=True)
    sys.path[:] = path
    (tmp_path / "mine").mkdir()
    write("mine/networks_of_a_user.py")
    monkeypatch.chdir(tmp_path / "mine")
    run_of(run_of_a_stranger, trust_imports=["networks_of_a_user"])  # the user's own module
    config_of_run(RunFiles(run_of_a_stranger).settings)  # the module is imported already


@pytest.mark.slow
@pytest.mark.parametrize("program", ["evaluate", "export", "table", "page"])
def test_programs_import_only_trusted_modules(program, run_of_a_stranger, tmp_path):
    run, output = run_of_a_stranger, tmp_path / "output.html"
    if program in ("evaluate", "export"):
        arguments = [f"{program}.py", f"--run_dir={run}", f"--output={output}"]
    else:
        arguments = ["report.py", program, run, *[f"--output={output}"] * (program != "table")]
    ended = run_main(*arguments)
    if program in ("table", "page"):
        assert (ended.returncode, ended.stderr) == (0, "")
        return
    assert ended.returncode == 1
    assert UNTRUSTED.replace("FOLDER", str(tmp_path / "stranger")) in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert run_main(*arguments, "--trust_imports").returncode == "executed"

"""Tests the lists of packages, and what `make` installs from them."""

import importlib.metadata
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import time

import pytest
import setuptools
from packaging.requirements import Requirement

from tests.documents import python_blocks
from tests.runs import run_python

ROOT = pathlib.Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"


def read_list(path):
    """Returns the requirements in a list, `{name: specifier}`, without comments."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    found = (re.fullmatch(r"([\w.-]+)(.*)", line) for line in lines if line)
    return {match[1].lower().replace("_", "-"): match[2] for match in found}


def read_lock(path):
    """Returns the locked packages, `{name: (version, number of hashes)}`."""
    blocks = re.split(r"\n(?=\w)", path.read_text())[1:]
    pins = [(re.match(r"([\w.-]+)==(\S+)", block), block) for block in blocks]
    return {pin[1]: (pin[2], block.count("--hash=sha256:")) for pin, block in pins}


@pytest.fixture(scope="module")
def lock():
    return read_lock(REQUIREMENTS / "lock.txt")


@pytest.fixture(scope="module")
def gpu_lock():
    return read_lock(REQUIREMENTS / "gpu.lock.txt")


def test_every_locked_package_has_hashes(lock, gpu_lock):
    assert len(lock) > 50
    assert [name for name, (_, hashes) in (lock | gpu_lock).items() if hashes == 0] == []


def test_lists_have_no_addresses():
    for name in ("direct.in", "overrides.txt", "lock.txt", "gpu.in", "gpu.lock.txt"):
        text = (REQUIREMENTS / name).read_text()
        assert not any(part in text for part in ("http", "file:", "index"))


def test_every_direct_dependency_is_bounded_and_locked(lock):
    direct = read_list(REQUIREMENTS / "direct.in")
    assert direct.keys() - lock.keys() == set()
    pinned = {name: pin[2:] for name, pin in direct.items() if pin.startswith("==")}
    assert {name: lock[name][0] for name in pinned} == pinned
    assert [name for name, bound in direct.items() if not bound] == ["wheel"]


def test_overrides_are_locked(lock):
    overrides = read_list(REQUIREMENTS / "overrides.txt")
    pinned = {name: pin[2:] for name, pin in overrides.items() if pin.startswith("==")}
    assert {name: lock[name][0] for name in pinned} == pinned
    assert overrides.keys() - pinned.keys() == {"pyarrow"}
    assert int(lock["pyarrow"][0].split(".")[0]) < 17


def test_gpu_list_equals_tensorflows_list_without_tensorrt(lock, gpu_lock):
    extra = [
        re.match(r"([\w-]+) ?\(?==([\w.]+)", requirement).groups()
        for requirement in importlib.metadata.requires("tensorflow")
        if "and-cuda" in requirement
    ]
    assert importlib.metadata.version("tensorflow") == lock["tensorflow"][0]
    wanted = {name: version for name, version in extra if name != "tensorrt"}
    assert len(wanted) == len(extra) - 1
    assert {name: version for name, (version, _) in gpu_lock.items()} == wanted
    assert read_list(REQUIREMENTS / "gpu.in") == {n: f"=={v}" for n, v in wanted.items()}


# Packages of tests and tools, and the one that pip cannot resolve.
NOT_OF_THE_LIBRARY = {
    *("hypothesis", "mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python", "mypy"),
    *("nbclient", "nbconvert", "pytest", "pytest-timeout", "pytest-xdist", "ruff", "wheel"),
    "tensorflow-federated",
}


@pytest.fixture
def metadata(monkeypatch):
    """Returns the arguments of `setuptools.setup`."""
    kept = {}
    monkeypatch.setattr(setuptools, "setup", kept.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return kept


def bounds_of(requirements):
    """Returns the bounds of each package, `{name: specifier}`."""
    return {r.name: r.specifier for r in map(Requirement, requirements)}


def test_package_requires_what_is_locked_and_all_but_tools(metadata, lock):
    required = bounds_of(metadata["install_requires"])
    offered = required | bounds_of(metadata["extras_require"]["notebooks"])
    assert [name for name, bounds in offered.items() if lock[name][0] not in bounds] == []
    assert read_list(REQUIREMENTS / "direct.in").keys() - offered.keys() == NOT_OF_THE_LIBRARY


def test_package_requires_what_tff_asks_for_or_what_replaces_it(metadata):
    required = bounds_of(metadata["install_requires"])
    overrides = bounds_of(f"{n}{v}" for n, v in read_list(REQUIREMENTS / "overrides.txt").items())
    asked = bounds_of(importlib.metadata.requires("tensorflow-federated")) | overrides
    assert [name for name, bounds in asked.items() if not set(bounds) <= set(required[name])] == []


def readme_command():
    """Returns the two commands of the README's line that installs the package."""
    (line,) = re.findall(r"^    (pip install .*)$", (ROOT / "README.md").read_text(), re.M)
    return line.split(" && ")


def test_missing_tff_is_a_sentence_with_the_command(lock):
    without = "import sys; sys.modules['tensorflow_federated'] = None; import tff_pfl"
    error = run_python("-c", without).stderr.splitlines()[-1]
    command = f"pip install --no-deps tensorflow-federated=={lock['tensorflow-federated'][0]}"
    assert readme_command() == ["pip install .", command]
    assert error.startswith("ModuleNotFoundError: tff_pfl needs TensorFlow Federated")
    assert error.endswith(f": {command}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wheel_in_a_fresh_environment_runs_the_first_program(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("tff_pfl", "configs", "programs"):
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=ignored)
    for name in ("README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path / "source")
    program = next(code for _, code in python_blocks(ROOT / "README.md"))
    for before, after in (("rounds=30", "rounds=1"), ("seeds=(0, 1, 2)", "seeds=(0,)")):
        assert before in program
        program = program.replace(before, after)
    (tmp_path / "program.py").write_text(program)
    path = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Compiling all modules, of which the program imports a third, is half of pip's work.
    settings = {"PATH": path, "PIP_NO_COMPILE": "1"}
    ours = ("PYTHON", "TF", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | settings

    def run(command, returncode=0):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == returncode, done.stdout + done.stderr
        return done

    resolving, adding_tff = readme_command()
    stale = tmp_path / "source" / "build" / "lib" / "tff_pfl" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    run(f"{sys.executable} -m venv venv && pip wheel --no-deps ./source")
    assert "stale" not in run("python -m zipfile -l tff_pfl-*.whl").stdout
    run(resolving.replace(" .", " ./tff_pfl-*.whl"))
    assert run("python -c 'import tff_pfl'", returncode=1).stderr.endswith(f": {adding_tff}\n")
    run(adding_tff)
    conflicts = run("pip check", returncode=1).stdout.splitlines()
    assert [line.split(",")[0] for line in conflicts] == [
        f"tensorflow-federated 0.87.0 has requirement {name}==0.4.14" for name in ("jax", "jaxlib")
    ]
    assert re.search(r"\nDitto +0\.\d+", run("python program.py").stdout)
    assert (tmp_path / "deployed").is_dir()
    run("tff-pfl train --config=digits.py:ditto --config.rounds=1 --output_dir=run")
    assert "personalized" in run("tff-pfl evaluate --run_dir=run --output=evaluated").stdout


# A stand-in for Python that copies itself to a .venv, and logs the lists that it should install.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
    "-m venv --clear .venv")
        rm -rf .venv/*
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        echo "a .venv" >>installed.log ;;
    "-m pip install"*)
        for list; do :; done
        echo "$list" >>installed.log; [ ! -e broken ] ;;
esac
"""
# A stand-in for uv that logs lists and their index; without the file `uv-works` it fails, as
# offline.
FAKE_UV = """#!/bin/sh
[ -e uv-works ] || exit 1
for list; do :; done
echo "uv: $list ${UV_DEFAULT_INDEX:-}" >>installed.log; [ ! -e broken ]
"""
WHOLE = ["a .venv", ".venv/build.txt", "requirements/lock.txt", "."]
GPU = ["requirements/gpu.lock.txt"]


@pytest.fixture
def checkout(tmp_path):
    """Makes a checkout with the files of the set-up, and stand-ins for Python and uv."""
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    for name, script in (("python", FAKE_PYTHON), ("uv", FAKE_UV)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def make(checkout, target="venv", **variables):
    """Runs a target; returns `(exit code, errors, installed lists)`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "PIP_", "UV_"))}
    path = f"{checkout}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["make", target, f"PYTHON={checkout / 'python'}"],
        cwd=checkout,
        env=inherited | {"PATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    log = checkout / "installed.log"
    installed = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return done.returncode, done.stderr, installed


def test_list_is_installed_once_regardless_of_file_times(checkout):
    assert make(checkout) == (0, "", WHOLE)
    assert make(checkout, "gpu") == (0, "", GPU)
    later = time.time() + 1000
    for path in [checkout / "setup.py", *(checkout / "requirements").iterdir()]:
        os.utime(path, (later, later))
    assert make(checkout) == make(checkout, "gpu") == (0, "", [])


def test_uv_installs_from_the_index_of_pip(checkout):
    (checkout / "uv-works").touch()
    by_uv = ["a .venv", *(f"uv: {list} here" for list in WHOLE[1:])]
    assert make(checkout, PIP_INDEX_URL="here") == (0, "", by_uv)


def test_pip_installs_lists_that_uv_cannot(checkout):
    (checkout / "uv-works").touch()
    (checkout / "broken").touch()
    assert make(checkout)[::2] == (2, ["a .venv", "uv: .venv/build.txt ", WHOLE[1]])


def test_changed_list_is_installed_again(checkout):
    assert make(checkout, "gpu") == (0, "", WHOLE + GPU)
    for name, installed in (("lock.txt", WHOLE + GPU), ("gpu.lock.txt", GPU)):
        path = checkout / "requirements" / name
        for text in (path.read_text() + "# a remark\n", path.read_text()):
            path.write_text(text)
            os.utime(path, (0, 0))
            assert make(checkout, "gpu") == (0, "", installed)


def test_failed_installation_is_repeated(checkout):
    (checkout / "broken").touch()
    assert make(checkout)[::2] == (2, WHOLE[:2])
    (checkout / "broken").unlink()
    assert make(checkout) == (0, "", WHOLE)
    assert make(checkout) == (0, "", [])
    (checkout / "broken").touch()
    assert make(checkout, "gpu")[::2] == make(checkout, "gpu")[::2] == (2, GPU)


@pytest.mark.parametrize("linked", ["an environment", "one of the same list", "nothing"])
def test_venv_that_is_a_link_is_refused_and_not_changed(checkout, linked):
    other = checkout / "other"
    if linked == "one of the same list":
        make(checkout)
        (checkout / ".venv").rename(other)
    elif linked == "an environment":
        (other / "bin").mkdir(parents=True)
        (other / "bin" / "python").write_text("mine")
    (checkout / ".venv").symlink_to("other")
    before = {path: path.stat().st_mtime_ns for path in sorted(other.rglob("*"))}
    for target in ("venv", "quickstart"):
        code, error, installed = make(checkout, target)
        assert (code, installed) == (2, [])
        assert error.startswith("error: .venv is a symbolic link to other, which would be emptied")
    assert {path: path.stat().st_mtime_ns for path in sorted(other.rglob("*"))} == before

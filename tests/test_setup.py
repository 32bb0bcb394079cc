"""The lists of packages agree with one another, and no address is in them."""

import importlib.metadata
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"


def read_list(path):
    """The requirements in a list, `{name: specifier}`, without comments."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    found = (re.fullmatch(r"([\w.-]+)(.*)", line) for line in lines if line)
    return {match[1].lower().replace("_", "-"): match[2] for match in found}


def read_lock(path):
    """What is locked, `{name: (version, number of hashes)}`."""
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


@pytest.mark.parametrize(
    "name", ["direct.in", "overrides.txt", "lock.txt", "gpu.in", "gpu.lock.txt"]
)
def test_no_list_has_an_address(name):
    text = (REQUIREMENTS / name).read_text()
    assert "http" not in text
    assert "file:" not in text
    assert "index" not in text


def test_every_direct_dependency_is_locked(lock):
    direct = read_list(REQUIREMENTS / "direct.in")
    assert direct.keys() - lock.keys() == set()
    pinned = {name: pin[2:] for name, pin in direct.items() if pin.startswith("==")}
    assert {name: lock[name][0] for name in pinned} == pinned


def test_every_direct_dependency_is_bounded():
    direct = read_list(REQUIREMENTS / "direct.in")
    assert [name for name, bound in direct.items() if not bound] == ["wheel"]


def test_overrides_are_locked(lock):
    overrides = read_list(REQUIREMENTS / "overrides.txt")
    pinned = {name: pin[2:] for name, pin in overrides.items() if pin.startswith("==")}
    assert {name: lock[name][0] for name in pinned} == pinned
    assert overrides.keys() - pinned.keys() == {"pyarrow"}
    assert int(lock["pyarrow"][0].split(".")[0]) < 17


def test_the_gpu_list_is_tensorflows_own_without_tensorrt(lock, gpu_lock):
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


def test_setup_asks_for_direct_dependencies_alone():
    installed = re.search(r"INSTALL_REQUIRES = \[(.*?)\]", (ROOT / "setup.py").read_text(), re.S)[1]
    names = set(re.findall(r'"([\w-]+)', installed))
    assert names - read_list(REQUIREMENTS / "direct.in").keys() == set()
    assert "tensorflow-federated" not in names

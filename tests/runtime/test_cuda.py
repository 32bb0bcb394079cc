"""Tests the CUDA libraries that are loaded, with replacements, since tests need no driver."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tff_pfl.runtime import cuda

DRIVER = "libcuda.so.1"
LIBRARIES = cuda._FOR_DEVICES + cuda._FOR_PROFILER

# The libraries of the packages to which others of them are linked (`readelf -d`).
CUBLAS = {"libcublas.so.11", "libcublasLt.so.11"}
LINKED_TO = {
    "libcublas.so.11": {"libcublasLt.so.11"},
    "libcusolver.so.11": CUBLAS,
    "libcudnn_ops_infer.so.8": CUBLAS,
    "libcudnn_ops_train.so.8": {"libcudnn_ops_infer.so.8"},
    "libcudnn_cnn_infer.so.8": CUBLAS | {"libcudnn_ops_infer.so.8"},
    "libcudnn_cnn_train.so.8": CUBLAS
    | {"libcudnn_ops_infer.so.8", "libcudnn_ops_train.so.8", "libcudnn_cnn_infer.so.8"},
    "libcudnn_adv_infer.so.8": {"libcudnn_ops_infer.so.8"},
    "libcudnn_adv_train.so.8": {
        "libcudnn_ops_infer.so.8",
        "libcudnn_ops_train.so.8",
        "libcudnn_adv_infer.so.8",
    },
}


class Linker:
    """A replacement for `ctypes.CDLL` that opens `present` libraries, and lists `opened` ones."""

    def __init__(self, present):
        self.present = {str(library) for library in present}
        self.opened = []

    def __call__(self, library):
        if library not in self.present:
            raise OSError(f"{library}: cannot open shared object file")
        self.opened.append(library)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Hides the user's settings, installed packages and `ptxas`."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)


def make_packages(folder, *, fill=pathlib.Path.touch):
    """Makes NVIDIA's packages, with files that `fill` makes for libraries, and with `ptxas`."""
    for name in (*LIBRARIES, "__init__.py", "cuda_nvcc/bin/ptxas"):
        file = folder / "nvidia" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        fill(file) if name in LIBRARIES else file.touch(mode=0o755)
    return folder / "nvidia"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return make_packages(tmp_path)


@pytest.fixture
def linker(monkeypatch, request):
    """A linker that opens the driver and the packages' libraries, if there are packages."""
    present = [DRIVER]
    if "packages" in request.fixturenames:
        present += [request.getfixturevalue("packages") / library for library in LIBRARIES]
    linker = Linker(present)
    monkeypatch.setattr(ctypes, "CDLL", linker)
    return linker


def test_each_library_is_loaded_once_after_its_dependencies(packages, linker):
    cuda.load_cuda_libraries()
    driver, *libraries = linker.opened
    assert driver == DRIVER
    assert sorted(libraries) == sorted(str(packages / library) for library in LIBRARIES)
    names = [pathlib.Path(library).name for library in libraries]
    assert LINKED_TO.keys() <= set(names)
    for i, name in enumerate(names):
        assert LINKED_TO.get(name, set()) <= set(names[:i]), name


def test_nothing_is_loaded_without_a_driver(packages, linker):
    linker.present.remove(DRIVER)
    before = dict(os.environ)
    cuda.load_cuda_libraries()
    assert not cuda.has_driver()
    assert linker.opened == []
    assert dict(os.environ) == before


def test_nothing_is_loaded_without_the_packages(linker):
    before = dict(os.environ)
    cuda.load_cuda_libraries()
    assert cuda.has_driver()
    assert set(linker.opened) == {DRIVER}
    assert dict(os.environ) == before


def test_other_libraries_are_loaded_after_a_failure(packages, linker):
    linker.present.remove(str(packages / LIBRARIES[0]))
    cuda.load_cuda_libraries()
    assert linker.opened[1:] == [str(packages / library) for library in LIBRARIES[1:]]


@pytest.mark.parametrize("flags", ["", "--xla_dump_to=/tmp/dump"])
def test_xla_finds_libdevice_and_ptxas_in_the_packages(packages, linker, monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    for _ in range(2):  # the second time changes nothing
        cuda.load_cuda_libraries()
        added = f'--xla_gpu_cuda_data_dir="{packages / "cuda_nvcc"}"'
        assert os.environ["XLA_FLAGS"].split() == [*flags.split(), added]
        assert os.environ["PATH"] == f"{packages / 'cuda_nvcc' / 'bin'}:/nowhere"
    assert shutil.which("ptxas") == str(packages / "cuda_nvcc" / "bin" / "ptxas")


@pytest.mark.parametrize("flags", ["--xla_gpu_cuda_data_dir=/opt/cuda", "flags.txt"])
def test_users_xla_flags_are_kept(packages, linker, monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    cuda.load_cuda_libraries()
    assert os.environ["XLA_FLAGS"] == flags
    assert os.environ["PATH"] == "/nowhere"


def test_missing_libraries_are_named(packages, linker):
    assert cuda.missing_libraries() == []
    linker.present -= {str(packages / "cudnn/lib/libcudnn.so.8"), DRIVER}
    linker.present.remove(str(packages / "cufft/lib/libcufft.so.10"))
    linker.present.remove(str(packages / "cuda_cupti/lib/libcupti.so.11.8"))  # only for profiles
    assert cuda.missing_libraries() == ["libcufft.so.10", "libcudnn.so.8"]
    linker.present.add("libcudnn.so.8")  # the system's own
    assert cuda.missing_libraries() == ["libcufft.so.10"]


PROGRAM = """
import ctypes
import sys

from tff_pfl.runtime.startup import prepare_process

prepare_process()
assert "tensorflow" not in sys.modules
for name in sys.argv[1:]:
    ctypes.CDLL(name)
    with open("/proc/self/maps") as maps:
        print(*{line.split()[-1] for line in maps if line.rstrip().endswith("/" + name)})
"""


def test_names_of_libraries_find_the_packages(tmp_path):
    # Copies of a small library get the name in the file too, since the linker uses both names.
    library = next((pathlib.Path(np.__file__).parents[1] / "numpy.libs").glob("libquadmath*"))

    def make_library(path):
        path.parent.mkdir(exist_ok=True)
        own_name = path.name.encode().ljust(len(library.name), b"\0")
        path.write_bytes(library.read_bytes().replace(library.name.encode(), own_name))

    packages = make_packages(tmp_path, fill=make_library)
    others = tmp_path / "others"  # a driver, and another CUDA
    for name in (DRIVER, "libcusolver.so.11"):
        make_library(others / name)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(pathlib.Path(library).name for library in LIBRARIES)],
        capture_output=True,
        text=True,
        env={
            "LD_LIBRARY_PATH": str(others),
            "PYTHONPATH": f"{tmp_path}:{pathlib.Path(__file__).parents[2]}",
        },
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(packages / library) for library in LIBRARIES]

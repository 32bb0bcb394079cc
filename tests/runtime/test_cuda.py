"""Which CUDA libraries are loaded, when and from where; with stand-ins, for want of a driver."""

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

# The libraries to which those of the packages are linked, among themselves (`readelf -d`).
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
    """In the place of `ctypes.CDLL`: opens what is `there`, and remembers what it has `opened`."""

    def __init__(self, there):
        self.there = {str(library) for library in there}
        self.opened = []

    def __call__(self, library):
        if library not in self.there:
            raise OSError(f"{library}: cannot open shared object file")
        self.opened.append(library)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No settings of the user's, no packages that are really installed, and no `ptxas`."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)


def make_packages(folder, *, of=LIBRARIES, fill=pathlib.Path.touch):
    """NVIDIA's packages with stand-ins for these libraries, and with `ptxas`."""
    for name in (*of, "__init__.py", "cuda_nvcc/bin/ptxas"):
        file = folder / "nvidia" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        fill(file) if name in of else file.touch(mode=0o755)
    return folder / "nvidia"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return make_packages(tmp_path)


@pytest.fixture
def linker(monkeypatch, request):
    """A linker that opens the driver and the packages' libraries, if there are packages."""
    there = [DRIVER]
    if "packages" in request.fixturenames:
        there += [request.getfixturevalue("packages") / library for library in LIBRARIES]
    linker = Linker(there)
    monkeypatch.setattr(ctypes, "CDLL", linker)
    return linker


def test_each_library_is_loaded_once_after_those_it_is_linked_to(packages, linker):
    cuda.load_cuda_libraries()
    driver, *libraries = linker.opened
    assert driver == DRIVER
    assert sorted(libraries) == sorted(str(packages / library) for library in LIBRARIES)
    names = [pathlib.Path(library).name for library in libraries]
    assert LINKED_TO.keys() <= set(names)
    for i, name in enumerate(names):
        assert LINKED_TO.get(name, set()) <= set(names[:i]), name


def test_without_a_driver_nothing_happens(packages, linker):
    linker.there.remove(DRIVER)
    before = dict(os.environ)
    cuda.load_cuda_libraries()
    assert not cuda.has_driver()
    assert linker.opened == []
    assert dict(os.environ) == before


def test_without_the_packages_nothing_happens(linker):
    before = dict(os.environ)
    cuda.load_cuda_libraries()
    assert cuda.has_driver()
    assert set(linker.opened) == {DRIVER}
    assert dict(os.environ) == before


def test_a_library_that_cannot_be_opened_does_not_stop_the_rest(packages, linker):
    linker.there.remove(str(packages / LIBRARIES[0]))
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
def test_a_user_who_names_a_folder_is_obeyed(packages, linker, monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    cuda.load_cuda_libraries()
    assert os.environ["XLA_FLAGS"] == flags
    assert os.environ["PATH"] == "/nowhere"


def test_what_is_missing_is_named(packages, linker):
    assert cuda.missing_libraries() == []
    linker.there -= {str(packages / "cudnn/lib/libcudnn.so.8"), DRIVER}
    linker.there.remove(str(packages / "cufft/lib/libcufft.so.10"))
    linker.there.remove(str(packages / "cuda_cupti/lib/libcupti.so.11.8"))  # for profiles alone
    assert cuda.missing_libraries() == ["libcufft.so.10", "libcudnn.so.8"]
    linker.there.add("libcudnn.so.8")  # the system's own
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


def test_the_name_of_a_library_finds_the_packages_own(tmp_path):
    # A small library under other names, inside and out, as the dynamic linker goes by both.
    library = next((pathlib.Path(np.__file__).parents[1] / "numpy.libs").glob("libquadmath*"))

    def stand_in(path):
        path.parent.mkdir(exist_ok=True)
        own_name = path.name.encode().ljust(len(library.name), b"\0")
        path.write_bytes(library.read_bytes().replace(library.name.encode(), own_name))

    packages = make_packages(tmp_path, fill=stand_in)
    others = tmp_path / "others"  # a driver, and another CUDA
    for name in (DRIVER, "libcusolver.so.11"):
        stand_in(others / name)
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

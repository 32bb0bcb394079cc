"""What a pack holds, as `Member`s: interpreter, packages, CUDA, repository, data sets.

Left out is what nothing here imports or opens on a GPU.
"""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable

from requirements.gpu_pack import elf
from requirements.gpu_pack.pieces import MIB, Member
from tff_pfl.runtime import cuda

ROOT = pathlib.Path(__file__).parents[2]
SITE = pathlib.Path(sysconfig.get_path("purelib"))
_HERE = pathlib.Path(__file__).parent
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = f"interpreter/lib/{_PYTHON}/site-packages"

# Of the standard library: tests, what draws windows, what installs packages.
_NOT_OF_STDLIB = re.compile(
    r"(test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-[^/]*|site-packages|dist-packages"
    r"|unittest/test|ctypes/test|distutils/tests)/"
    r"|lib-dynload/(_tkinter|_curses|_curses_panel|readline|nis|_dbm|_gdbm|_test|_ctypes_test|xx)"
)
# What Vizier searches with, which nothing else imports: studies can have no Search.
_OF_SEARCH = frozenset(
    {
        "chex",
        "equinox",
        "flax",
        "jaxopt",
        "jaxtyping",
        "markdown-it-py",
        "mdurl",
        "msgpack",
        "nest-asyncio",
        "optax",
        "orbax-checkpoint",
        "rich",
        "tensorstore",
        "toolz",
        "typeguard",
    }
)
# Locked for the set-up and for development, or pulled in by what is never called: no program and no
# test imports them.
_NOT_OF_LOCK = _OF_SEARCH | frozenset(
    {
        "grpcio-tools",
        "libclang",
        "pyarrow",
        "ruff",
        "tensorboard-data-server",
        "tensorflow-io-gcs-filesystem",
        "wheel",
    }
)
_NOT_OF_PACKAGES = re.compile(
    r"(^|/)(tests|include|__pycache__)/"
    r"|\.(a|h|hpp|cc|pyx|pxd|pyi|pyc)$"
    r"|^\.\./"  # scripts, whose first line names the .venv
    r"|^tensorflow_federated/data/worker_binary$"
)
# TFF is not imported where this file is missing; what it is, is built without CUDA.
_WORKER = b"""#!/bin/sh
echo "error: TFF's stock runtime is not in this pack; use the graph runtime" >&2
exit 1
"""
# What a GPU's program needs besides the libraries in `tff_pfl.runtime.cuda`: XLA compiles with it.
_COMPILER = ("cuda_nvcc/bin/ptxas", "cuda_nvcc/nvvm/libdevice/libdevice.10.bc")
# What TensorFlow only looks for, and registers no GPU without, until something computes with it:
# Fourier transforms, sparse matrices, cuDNN's recurrent layers. FedPG inverts by cuSOLVER.
_LOOKED_FOR = (
    "cufft/lib/libcufft.so.10",
    "cusparse/lib/libcusparse.so.11",
    "cudnn/lib/libcudnn_adv_infer.so.8",
    "cudnn/lib/libcudnn_adv_train.so.8",
)
# What every Linux has, in the version of its own kernel and drivers.
_OF_THE_SYSTEM = re.compile(
    r"(linux-vdso|ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|nsl|anl|mvec))\.so"
)


def interpreter() -> list[Member]:
    """The running Python without its packages, the libraries it needs, and what unpacks pieces."""
    binary = pathlib.Path(sys.executable).resolve()
    stdlib = pathlib.Path(os.__file__).parent
    members = [Member(f"bin/{_PYTHON}", binary, 0o755)]
    for file in _files(stdlib):
        path = file.relative_to(stdlib).as_posix()
        if not _NOT_OF_STDLIB.match(path) and not _NOT_OF_PACKAGES.search(path):
            members.append(Member(f"lib/{_PYTHON}/{path}", file))
    linked = [m.content for m in members if m.path.endswith(".so")]
    linked += [binary, SITE / "tensorflow/libtensorflow_framework.so.2"]
    members += shared_libraries(linked)
    members += [Member(name, _HERE / name) for name in ("unpack.py", "launcher.sh")]
    return members


def shared_libraries(files: Iterable[pathlib.Path]) -> list[Member]:
    """What these files are linked to, outside of packages, and not every Linux has."""
    listed = subprocess.run(["ldd", *files], capture_output=True, text=True).stdout
    found = dict(re.findall(r"^\s+(\S+) => (/\S+)", listed, re.MULTILINE))
    paths = {name: pathlib.Path(path).resolve() for name, path in sorted(found.items())}
    return [
        Member(f"lib/{name}", path, 0o755, elf.unloaded(path))
        for name, path in paths.items()
        if not _OF_THE_SYSTEM.match(name) and SITE not in path.parents
    ]


def packages(capability: int | None = None) -> list[Member]:
    """The files of what lock.txt lists, from the running Python's packages.

    Args:
        capability: ten times the compute capability of the GPUs that the pack is for; `None`: any.
    """
    names = set(locked(ROOT / "requirements" / "lock.txt")) - _NOT_OF_LOCK
    installed = {_normal(d.name): d for d in importlib.metadata.distributions(path=[str(SITE)])}
    if missing := names - installed.keys():
        raise ValueError(f"these locked packages are not installed: {sorted(missing)}; `make venv`")
    files = {
        str(file)
        for name in names
        for file in installed[name].files
        if not _NOT_OF_PACKAGES.search(str(file)) and (SITE / file).is_file()
    }
    members = [_packed(SITE / file, capability) for file in files]
    to_repository = os.path.relpath("tff_pfl_repo", _PACKAGES)
    members.append(Member(f"{_PACKAGES}/tff_pfl.pth", f"{to_repository}\n".encode()))
    members.append(Member(f"{_PACKAGES}/tensorflow_federated/data/worker_binary", _WORKER, 0o755))
    return sorted(members, key=_code_first)


def cuda_libraries(site: pathlib.Path, *, whole: bool = False) -> list[Member]:
    """What TensorFlow opens of NVIDIA's packages in `site`, with their licenses.

    Unless `whole`, libraries without content take the place of those that this library and its
    tests compute nothing with.
    """
    wanted = [f"nvidia/{name}" for name in (*cuda._FOR_DEVICES, *cuda._FOR_PROFILER, *_COMPILER)]
    if missing := [name for name in wanted if not (site / name).exists()]:
        raise ValueError(f"{site} lacks {missing}")
    licenses = site.glob("nvidia_*.dist-info/*[Ll]icense*")
    wanted += [file.relative_to(site).as_posix() for file in sorted(licenses)]
    empty = set() if whole else {f"nvidia/{name}" for name in _LOOKED_FOR}
    return [
        Member(f"{_PACKAGES}/{name}", elf.empty_library(pathlib.PurePath(name).name))
        if name in empty
        else Member(f"{_PACKAGES}/{name}", site / name, _mode(site / name))
        for name in wanted
    ]


def repository() -> list[Member]:
    """The files of this repository that git tracks, as they are."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    return [
        Member(f"tff_pfl_repo/{file.relative_to(ROOT)}", file, _mode(file))
        for file in files
        if file.is_file()
    ]


def data_sets(folder: pathlib.Path, names: Iterable[str]) -> list[Member]:
    """TFDS's prepared data sets."""
    members = []
    for name in names:
        files = _files(folder / name)
        if not files:
            raise ValueError(f"{folder} has no data set {name}: name TFDS's folder by --data_dir")
        members += [Member(f"data/{file.relative_to(folder).as_posix()}", file) for file in files]
    return members


def locked(lock: pathlib.Path) -> list[str]:
    """The names in a locked list."""
    return [_normal(name) for name in re.findall(r"^([\w.-]+)==", lock.read_text(), re.MULTILINE)]


def _packed(file, capability):
    blank = []
    if ".so" in file.name and file.stat().st_size > MIB:
        blank = elf.unloaded(file)
        if capability:
            blank += elf.foreign_kernels(file, capability)
    path = file.relative_to(SITE).as_posix()
    return Member(f"{_PACKAGES}/{path}", file, _mode(file), blank)


def _files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _mode(file):
    return 0o755 if os.access(file, os.X_OK) and file.stat().st_mode & 0o111 else 0o644


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _code_first(member):
    """Like files are compressed together."""
    return (".so" not in member.path, pathlib.PurePath(member.path).suffix, member.path)

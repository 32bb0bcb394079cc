"""Records the versions of software and of users' code, and the machine, of a run."""

import ast
import functools
import hashlib
import importlib.util
import os
import pathlib
import platform
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tff_pfl import runtime
from tff_pfl.arguments.tracebacks import is_users
from tff_pfl.experiment.run_directory import RunDirectory
from tff_pfl.experiment.run_files import CODE, SESSIONS, RunFiles, Session

_SOFTWARE = (
    "python",
    "tff_pfl",
    "commit",
    "changed",
    "tensorflow_federated",
    "tensorflow",
    "numpy",
)


def current_versions() -> dict[str, Any]:
    """Returns the current versions and hardware as JSON values, without the machine's name.

    Returns:
        `python`, `tff_pfl`, `tensorflow_federated`, `tensorflow` and `numpy`: versions.
        `commit`: the git commit of the checkout that tff_pfl is in; `None` outside of a checkout.
        `changed`: whether `tff_pfl/` differs from the commit; `None` outside of a checkout.
        `processor`: the processor's name.
        `cores`: the number of its cores.
        `onednn`: whether TensorFlow uses the kernels of oneDNN on CPUs.
        `devices`: the names of the devices that compute clients, with the models of GPUs; `None` if
        TFF's own runtime chooses them.
    """
    commit, changed = _checkout(pathlib.Path(tff_pfl.__file__).parent)
    devices = runtime.current_devices()
    return {
        "python": platform.python_version(),
        "tff_pfl": tff_pfl.__version__,
        "commit": commit,
        "changed": changed,
        "tensorflow_federated": tff.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "onednn": runtime.uses_onednn(),
        "devices": None if devices is None else list(map(_described, devices)),
    }


def software() -> dict[str, Any]:
    """Returns the current versions of software; see `current_versions`."""
    versions = current_versions()
    return {name: versions[name] for name in _SOFTWARE}


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """Returns digests of the current source files of a user's own modules.

    Args:
        modules: The names of imported modules, such as `config.imports`. The user's modules that
            they import count, too, and so do all imported modules of their packages.

    Returns:
        16 hexadecimal digits for each key `code of MODULE`. Modules of this library, whose version
        and commit are recorded, and installed ones are left out, unless they are in `modules`.
    """
    packages = {name.partition(".")[0] for name in modules} - {tff_pfl.__name__}
    waiting = [name for name in sys.modules if name.partition(".")[0] in packages]
    digests: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        module = sys.modules[name]
        key = CODE + (f"{name}.__init__" if hasattr(module, "__path__") else name)
        file = getattr(module, "__file__", None)
        if file and key not in digests and os.path.exists(file):
            source = pathlib.Path(file).read_bytes()
            digests[key] = hashlib.sha256(f"{name}\n".encode() + source).hexdigest()[:16]
            waiting += filter(_is_users, _imported(module, source) if file.endswith(".py") else ())
    return dict(sorted(digests.items()))


def _imported(module: types.ModuleType, source: bytes) -> Iterator[str]:
    """Yields the names that a module imports, anywhere in its source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            name = importlib.util.resolve_name(relative, module.__package__)
            yield from (name, *(f"{name}.{alias.name}" for alias in node.names))


def _is_users(name: str) -> bool:
    """Returns whether a module was imported from a user's file."""
    return is_users(getattr(sys.modules.get(name), "__file__", None) or "<string>")


def other_versions(run_dir: str | os.PathLike, imports: Iterable[str] = ()) -> list[str]:
    """Lists the differences between the current versions and those of a run's last rounds.

    A user's module that was imported only then, or only now, is not a difference.

    Args:
        run_dir: The run's directory.
        imports: The user's modules whose code is compared; see `code_of`.

    Returns:
        The differences, as text.

    Raises:
        OutputDirectoryError: The record of versions is damaged.
    """
    sessions = RunFiles(run_dir).sessions
    return _changes(sessions[-1].versions, _versions(imports)) if sessions else []


def other_software(run_dir: str | os.PathLike) -> list[str]:
    """Lists the differences between the software now and in a run's last rounds, as text.

    Software is that of whose graphs fingerprints are made, not the user's modules.

    Raises:
        OutputDirectoryError: The record of versions is damaged.
    """
    changes = other_versions(run_dir)
    return [change for change in changes if change.partition(" ")[0] in _SOFTWARE]


def record_versions(
    directory: RunDirectory, rounds_before: int, imports: Iterable[str] = ()
) -> list[str]:
    """Records the current versions, if they differ from those of the run's last rounds.

    Args:
        directory: The directory of the run, which may be new.
        rounds_before: The number of rounds that the run has done.
        imports: The user's modules whose code is recorded; see `code_of`.

    Returns:
        The differences, as from `other_versions`; `[]` for a new run.

    Raises:
        OutputDirectoryError: The record of versions is damaged.
    """
    sessions, now = RunFiles(directory.path).sessions, _versions(imports)
    if sessions and sessions[-1].versions == now:
        return []
    written = [session._asdict() for session in [*sessions, Session(rounds_before, now)]]
    directory.write_json(SESSIONS, {"sessions": written})
    return _changes(sessions[-1].versions, now) if sessions else []


def _versions(imports: Iterable[str]) -> dict[str, Any]:
    return current_versions() | code_of(imports)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} {before.get(key)} then, {now.get(key)} now"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
        and (not key.startswith(CODE) or (key in before and key in now))
        and not (key == "devices" and None in (before.get(key), now.get(key)))
    ]


@functools.cache
def _checkout(package: pathlib.Path) -> tuple[str | None, bool | None]:
    """Returns the commit of a folder's checkout, and whether the folder differs from it."""
    if not (package.parent / ".git").exists():
        return None, None
    commit = _git(package, "rev-parse", "HEAD")
    status = _git(package, "status", "--porcelain", "--", ".")
    return commit, None if status is None else bool(status)


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        answer = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


@functools.cache
def _processor() -> str:
    """Returns the processor's name, or its architecture outside of Linux."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _described(device: str) -> str:
    """Returns a device's type and number, with its model if it is a GPU of this process."""
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    if spec.job == "worker":
        return f"{name} of worker {spec.task}"
    gpus = tf.config.list_physical_devices(spec.device_type)[spec.device_index :]
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return f"{name}, {details['device_name']}" if "device_name" in details else name

"""Loads the CUDA libraries that `make gpu` installs, instead of others on the machine.

This module imports neither TensorFlow nor TensorFlow Federated.

TensorFlow 2.14 opens CUDA 11.8 and cuDNN 8 by name, and finds them in NVIDIA's packages, which are
installed beside its own. On a machine with no other CUDA, GPUs work without this module. Another
CUDA may take precedence:

*   `LD_LIBRARY_PATH` is searched before the packages, and CUDA 12 has libraries of the same names.
*   CUPTI, the profiler's library, is not searched in the packages; any `libcupti.so` is used.
*   XLA compiles with the `ptxas` on the `PATH` and with the libdevice in `/usr/local/cuda`.

`load_cuda_libraries` gives the packages precedence. Importing tff_pfl calls it, which must happen
before TensorFlow is imported.
"""

import ctypes
import importlib.util
import os
import pathlib

# Files of NVIDIA's packages that TensorFlow opens before it registers a GPU, and the parts that
# cuDNN opens later. Each file comes after the files it is linked to.
_FOR_DEVICES = (
    "cuda_runtime/lib/libcudart.so.11.0",
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    "cufft/lib/libcufft.so.10",
    "cusolver/lib/libcusolver.so.11",
    "cusparse/lib/libcusparse.so.11",
    "cudnn/lib/libcudnn.so.8",
    "cudnn/lib/libcudnn_ops_infer.so.8",
    "cudnn/lib/libcudnn_ops_train.so.8",
    "cudnn/lib/libcudnn_cnn_infer.so.8",
    "cudnn/lib/libcudnn_cnn_train.so.8",
    "cudnn/lib/libcudnn_adv_infer.so.8",
    "cudnn/lib/libcudnn_adv_train.so.8",
)
_FOR_PROFILER = ("cuda_cupti/lib/libcupti.so.11.8",)


def load_cuda_libraries() -> None:
    """Makes TensorFlow use the installed CUDA libraries, if it is imported afterwards.

    The libraries are loaded here, so that TensorFlow finds them by their names. The folder of
    `ptxas` is put first in `PATH`, and the folder of libdevice is added to `XLA_FLAGS`. Both
    variables stay unchanged if `XLA_FLAGS` sets `xla_gpu_cuda_data_dir` or names a file of flags.

    Does nothing without NVIDIA's driver, and skips libraries that are not installed.
    """
    if not has_driver():
        return
    for library in _FOR_DEVICES + _FOR_PROFILER:
        if path := _installed(library):
            _opens(path)
    if ptxas := _installed("cuda_nvcc/bin/ptxas"):
        _compile_with(ptxas)


def has_driver() -> bool:
    """Returns whether NVIDIA's driver is installed; there may still be no GPU."""
    return _opens("libcuda.so.1")


def missing_libraries() -> list[str]:
    """Returns the names of the libraries that TensorFlow needs for a GPU but cannot open.

    All other libraries are loaded into the process. The driver's own library is not checked.
    """

    def is_missing(library):
        path = _installed(library)
        return not (path and _opens(path)) and not _opens(_name(library))

    return [_name(library) for library in _FOR_DEVICES if is_missing(library)]


def _compile_with(ptxas: pathlib.Path) -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_cuda_data_dir" in flags or (flags and not flags.lstrip().startswith("-")):
        return
    folder = ptxas.parents[1]
    os.environ["XLA_FLAGS"] = f'{flags} --xla_gpu_cuda_data_dir="{folder}"'.lstrip()
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([str(ptxas.parent), path])


def _installed(file: str) -> pathlib.Path | None:
    """Returns the path of a file in NVIDIA's packages, which share the folder `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec and spec.submodule_search_locations) or []
    paths = (pathlib.Path(folder, file) for folder in folders)
    return next((path for path in paths if path.exists()), None)


def _opens(library: str | pathlib.Path) -> bool:
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def _name(library: str) -> str:
    return pathlib.PurePath(library).name

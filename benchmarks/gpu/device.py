"""Checks the device and its results; does not import TFF."""

import functools
import importlib
import pathlib
import re
import shutil
import subprocess
import time

import numpy as np

from benchmarks.gpu.report import CheckError, Report
from benchmarks.timing import spread
from tff_pfl.runtime import cuda
from tff_pfl.runtime.startup import prepare_process

_DRIVER_FILE = pathlib.Path("/proc/driver/nvidia/version")
_SMI_SECONDS = 20.0
_LIBRARY = re.compile(r"/lib(cu|nv)[^/]*\.so[^/]*$")
# Largest errors relative to the largest value of the result. Some cuDNN convolutions round more.
_CONVOLUTION = 1e-4
_TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}


def check_device(report: Report) -> None:
    """Runs and checks ever larger computations on the device.

    Raises:
        CheckError: TensorFlow does not list a device.
    """
    prepare_process()
    report.do("driver", lambda: {"value": driver()})
    report.do("TensorFlow", lambda: {"value": importlib.import_module("tensorflow").__version__})
    import tensorflow as tf

    require(report)
    for device in tf.config.list_physical_devices(report.devices):
        details = tf.config.experimental.get_device_details(device)
        text = ", ".join(f"{key} {value}" for key, value in details.items())
        report.do(device.name, lambda text=text or device.device_type: {"value": text})
    tf.config.experimental.enable_tensor_float_32_execution(False)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, *(2 * [64 if report.is_toy else 1024]))).astype(np.float32)
    expected = a.astype(np.float64) @ b
    by_xla = tf.function(lambda a, b: tf.tanh(a @ b / len(a)), jit_compile=True)
    with tf.device(tf.config.list_logical_devices(report.devices)[0].name):
        report.do("first product", lambda: compare(tf.matmul(a, b), expected))
        report.do("libraries opened", lambda: {"value": opened_libraries()})
        report.do("convolution", lambda: _convolve(tf, rng))
        squashed = np.tanh(expected / len(a))
        report.do("product by XLA", lambda: compare(by_xla(a, b), squashed))
        size = 256 if report.is_toy else 8192
        for precision in _TOLERANCES:
            product = functools.partial(_time_products, tf, precision, size)
            report.do(f"{size} x {size} in {precision}", product)


def require(report: Report) -> None:
    """Raises CheckError, which names missing parts, if TensorFlow does not list a device."""
    import tensorflow as tf

    if not tf.config.list_physical_devices(report.devices):
        missing = ", ".join(cuda.missing_libraries()) or "none"
        state = "is" if cuda.has_driver() else "is not"
        raise CheckError(
            f"TensorFlow lists no {report.devices}. NVIDIA's driver {state} installed; missing "
            f"CUDA libraries: {missing}."
        )


def driver() -> str:
    """Returns the versions that NVIDIA's driver reports for itself and its GPUs, or "none"."""
    lines = _DRIVER_FILE.read_text().splitlines()[:1] if _DRIVER_FILE.exists() else []
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total,compute_cap"
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
            lines += (done.stdout or done.stderr).splitlines()
        except subprocess.TimeoutExpired:
            lines.append(f"nvidia-smi did not answer within {_SMI_SECONDS:g} s")
    return "; ".join(line.strip() for line in lines) or "none"


def opened_libraries() -> list[str]:
    """Returns the paths of the CUDA and driver libraries that this process has opened."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return sorted(filter(_LIBRARY.search, {line.split(maxsplit=5)[-1] for line in lines}))


def compare(result, expected, tolerance=_TOLERANCES["float32"]) -> dict[str, float]:
    """Returns the relative error of a result; raises CheckError if it is too large."""
    error = float(np.max(np.abs(np.asarray(result, np.float64) - expected)))
    error /= float(np.max(np.abs(expected)))
    if not error <= tolerance:  # also true for NaN
        raise CheckError(f"The relative error is {error:.3g}, above {tolerance:.3g}.")
    return {"relative_error": error}


def _convolve(tf, rng):
    """Checks a convolution and the gradient of its filters, which cuDNN computes."""
    images = rng.normal(size=(8, 12, 12, 3)).astype(np.float32)
    filters = rng.normal(size=(5, 5, 3, 16)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(images, (5, 5), axis=(1, 2))
    expected = np.einsum("nyxcij,ijco->nyxo", windows.astype(np.float64), filters)
    with tf.GradientTape() as tape:
        tape.watch(filters := tf.constant(filters))
        result = tf.nn.conv2d(images, filters, 1, "VALID")
        half_square = tf.reduce_sum(result**2) / 2
    figures = compare(result, expected, _CONVOLUTION)
    gradient = np.einsum("nyxcij,nyxo->ijco", windows.astype(np.float64), expected)
    of_gradient = compare(tape.gradient(half_square, filters), gradient, _CONVOLUTION)
    return figures | {"error_of_gradient": of_gradient["relative_error"]}


def _time_products(tf, precision, size):
    dtype = tf.dtypes.as_dtype(precision)
    a, b = (tf.cast(tf.random.stateless_normal([size, size], [0, i]), dtype) for i in range(2))
    rows = np.asarray(tf.cast(a[:4], tf.float32), np.float64)
    expected = rows @ np.asarray(tf.cast(b, tf.float32), np.float64)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        first_rows = tf.cast(
            tf.matmul(a, b)[:4], tf.float32
        ).numpy()  # waits until the product is computed
        seconds.append(time.perf_counter() - start)
    teraflops = 2 * size**3 / spread(seconds[1:])["median"] / 1e12
    return compare(first_rows, expected, _TOLERANCES[precision]) | {"teraflops": teraflops}

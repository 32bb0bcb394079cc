"""Part 1: the device, and whether what it computes is right; nothing of TFF is imported."""

import os
import pathlib
import re
import shutil
import statistics
import subprocess
import time

import numpy as np

from gpu.parts import CheckError, Task
from gpu.report import Report
from tff_pfl.runtime import cuda

_DRIVER_FILE = pathlib.Path("/proc/driver/nvidia/version")
_SMI_SECONDS = 20.0
_MAPS = pathlib.Path("/proc/self/maps")
_LIBRARY = re.compile(r"/lib(cu|nv)[^/]*\.so[^/]*$")
# The largest error, over the largest value of the result; cuDNN has convolutions that round more.
_CONVOLUTION = 1e-4
_TOLERANCES = {"float32": 1e-5, "TF32": 2e-3, "bfloat16": 2e-2}


def run(task: Task, report: Report) -> None:
    """Finds the device, and computes on it ever more; what is there is saved at each step.

    Raises:
        CheckError: There is no device, or a result is wrong.
    """
    report.add("driver", value=driver())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpus = len(os.sched_getaffinity(0))
    report.add("machine", value=f"{cpus} CPUs, {memory:.0f} GiB of memory")
    before = _cache_mib()
    import tensorflow as tf

    report.add("TensorFlow imported", value=tf.__version__, seconds_from_start=task.elapsed())
    name = _find_device(task, report, tf)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, *(2 * [64 if task.is_toy else 1024]))).astype(np.float32)
    expected = a.astype(np.float64) @ b
    with tf.device(name):
        _check(task, report, "first product", tf.matmul(a, b), expected)
        _add_libraries(report)
        _convolve(task, report, tf, rng)

        @tf.function(jit_compile=True)
        def by_xla(a, b):
            return tf.tanh(a @ b / len(a))

        _check(task, report, "product by XLA", by_xla(a, b), np.tanh(expected / len(a)))
        for precision in _TOLERANCES:
            if precision == "TF32" and task.is_toy:
                report.note("TF32 is of GPUs")
            else:
                _time_products(task, report, tf, precision)
    _add_libraries(report)
    report.add("kernels the driver has compiled, MiB", value=_cache_mib(), before=before)


def driver() -> str:
    """What NVIDIA's driver says of itself and its GPUs, or "none"."""
    said = []
    if _DRIVER_FILE.exists():
        said += _DRIVER_FILE.read_text().splitlines()[:1]
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total,compute_cap"
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
            said += (done.stdout or done.stderr).splitlines()
        except subprocess.TimeoutExpired:
            said.append(f"nvidia-smi did not answer within {_SMI_SECONDS:g} s")
    if not said and cuda.has_driver():
        said.append("libcuda.so.1 can be opened")
    return "; ".join(line.strip() for line in said) or "none"


def _find_device(task: Task, report: Report, tf) -> str:
    devices = tf.config.list_physical_devices(task.devices)
    _add_libraries(report)
    if not devices:
        missing = ", ".join(cuda.missing_libraries()) or "none"
        there = "is" if cuda.has_driver() else "is not"
        raise CheckError(
            f"TensorFlow lists no GPU. NVIDIA's driver {there} there; CUDA libraries that are "
            f"missing: {missing}."
        )
    for device in devices:
        details = tf.config.experimental.get_device_details(device)
        text = ", ".join(f"{key} {value}" for key, value in details.items())
        report.add(device.name, value=text or device.device_type)
    return tf.config.list_logical_devices(task.devices)[0].name


def opened_libraries() -> list[str]:
    """Paths of the CUDA libraries, and of the driver's, that this process has opened."""
    maps = _MAPS.read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in maps}
    return sorted(filter(_LIBRARY.search, paths))


def _add_libraries(report: Report) -> None:
    report.add("libraries opened", value=opened_libraries())


def _check(task, report, what, result, expected, tolerance=_TOLERANCES["float32"], **figures):
    """Adds a record of a result; raises if it is wrong."""
    result = np.asarray(result, np.float64)
    error = float(np.max(np.abs(result - expected)) / np.max(np.abs(expected)))
    figures = {"relative_error": error, "seconds_from_start": task.elapsed(), **figures}
    if not error <= tolerance:  # NaN is wrong, too
        figures["error"] = f"relative error {error:.3g}, where {tolerance:.3g} was to be expected"
    report.add(what, **figures)
    if "error" in figures:
        raise CheckError(f"{what}: {figures['error']}.")


def _convolve(task, report, tf, rng):
    """A convolution and the gradient of its filters, as clients have it: cuDNN's work."""
    images = rng.normal(size=(8, 12, 12, 3)).astype(np.float32)
    filters = rng.normal(size=(5, 5, 3, 16)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(images, (5, 5), axis=(1, 2))
    expected = np.einsum("nyxcij,ijco->nyxo", windows.astype(np.float64), filters)
    with tf.GradientTape() as tape:
        tape.watch(filters := tf.constant(filters))
        result = tf.nn.conv2d(images, filters, 1, "VALID")
        half_square = tf.reduce_sum(result**2) / 2
    _check(task, report, "convolution", result, expected, _CONVOLUTION)
    gradient = np.einsum("nyxcij,nyxo->ijco", windows.astype(np.float64), expected)
    result = tape.gradient(half_square, filters)
    _check(task, report, "gradient of a convolution", result, gradient, _CONVOLUTION)


def _time_products(task, report, tf, precision):
    size = 256 if task.is_toy else 8192
    tf.config.experimental.enable_tensor_float_32_execution(precision == "TF32")
    dtype = tf.bfloat16 if precision == "bfloat16" else tf.float32
    a = tf.cast(tf.random.stateless_normal([size, size], [0, 0]), dtype)
    b = tf.cast(tf.random.stateless_normal([size, size], [0, 1]), dtype)
    rows = np.asarray(tf.cast(a[:4], tf.float32), np.float64)
    expected = rows @ np.asarray(tf.cast(b, tf.float32), np.float64)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        result = tf.matmul(a, b)
        first_rows = tf.cast(result[:4], tf.float32).numpy()  # waits for the product
        seconds.append(time.perf_counter() - start)
    _check(
        task,
        report,
        f"{size} x {size} in {precision}",
        first_rows,
        expected,
        _TOLERANCES[precision],
        teraflops=2 * size**3 / statistics.median(seconds[1:]) / 1e12,
    )


def _cache_mib() -> float:
    """What the driver has compiled, and kept."""
    folder = os.environ.get("CUDA_CACHE_PATH") or os.path.expanduser("~/.nv/ComputeCache")
    sizes = (path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return round(sum(sizes) / 2**20, 1)

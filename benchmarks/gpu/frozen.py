"""Measures adapters of large frozen networks on the device."""

import functools
import os
import tempfile

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from benchmarks import adapters
from benchmarks.gpu.device import require
from benchmarks.gpu.report import Report


def measure_adapters(report: Report) -> None:
    """Measures LoRA on frozen transformers, and bare steps of the same arithmetic.

    Raises:
        CheckError: There is no GPU.
    """
    require(report)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFF_PFL_CACHE"] = folder
        for size in [adapters.TOY] if report.is_toy else [100, 400]:
            file = os.path.join(folder, f"{size}.safetensors")
            adapters.write(size, file)
            for engine in adapters.ENGINES:
                case = adapters.Case(size, engine, 3 if report.is_toy else 6, 4, file)
                task = f"{size} MB, {engine}"
                report.do(task, functools.partial(adapters.measured, case))

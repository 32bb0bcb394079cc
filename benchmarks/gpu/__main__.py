"""Checks that a GPU works and computes correctly, and measures it.

    python -m benchmarks.gpu --output_dir=DIR [--parts=device,rounds] [--minutes=12]
        [--python=PYTHON] [--devices=CPU]

The parts are ordered by their worth. Each runs in its own process, and has a share of the time that
is left:

    device          the driver, the GPU, the opened libraries, and checked products and convolutions
    rounds          rounds of FedAvg for a linear model and PGFed's CNN; clients of equal and of
                    lognormal sizes; a bare TensorFlow loop, this library's loop, clients side by
                    side, XLA and ways of convolution, in turns with PyTorch and JAX, if PYTHON has
                    them
    agreement       rounds of eight methods with unequal clients, compiled and as a loop
    unequal         the first, tenth and hundredth rounds of four methods with unequal clients,
                    compiled, not compiled and as a loop
    adapters        rounds of LoRA on frozen transformers of 100 and 400 MB, and bare steps of the
                    same arithmetic
    compilations    what XLA compiles in 20 rounds of cohorts of unequal clients
    trainings       ten rounds of five algorithms, each on the GPU and on the CPU
    resnet18_float32, resnet18_tf32, resnet18_bfloat16
                    rounds of FedAvg with ResNet-18, in one precision
    tests           the tests of devices and of conformance, on the GPU

DIR gets three files. Each figure is a line of figures.jsonl as soon as it is known; log.txt has the
output of all parts; cuda_cache.tar.xz has what the driver compiled, and saves a minute if it is
copied to the DIR of another machine with such a GPU. The next run of the program skips what is
complete. A part that fails does not stop the next one, but the program's exit code is then 1. At
the end, tables show the figures that decide how this library computes on GPUs.

Data sets are read from TFDS_DATA_DIR. With --devices=CPU, all parts run at toy sizes on logical CPU
devices, without a data set.
"""

import sys

from absl import app, flags

from benchmarks.gpu.report import CheckError
from benchmarks.gpu.runner import PARTS, check

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory for the three files.")
_PARTS = flags.DEFINE_list("parts", list(PARTS), "Names of the parts to run; see above.")
_MINUTES = flags.DEFINE_float(
    "minutes", 12.0, "Time limit for all parts together.", lower_bound=0.0
)
_PYTHON = flags.DEFINE_string("python", "python3", "A Python with PyTorch or JAX.")
_DEVICES = flags.DEFINE_enum("devices", "GPU", ["GPU", "CPU"], "Devices to check; see above.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    try:
        return check(
            _OUTPUT_DIR.value,
            devices=_DEVICES.value,
            parts=[name for name in PARTS if name in _PARTS.value],
            minutes=_MINUTES.value,
            python=_PYTHON.value,
        )
    except (CheckError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


@flags.validator("parts", f"must be among {', '.join(PARTS)}.")
def _are_parts(names):
    return bool(names) and set(names) <= set(PARTS)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    app.run(main)

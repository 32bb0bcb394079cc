"""Checks that a GPU works and computes correctly, and measures it.

    gpu_check.py --output_dir=DIR [--parts=1,3] [--minutes=45] [--devices=CPU]

The check has five parts. Each runs in its own process, with its own time limit, in this order:

    1  device         the driver, the GPU, the opened libraries, and checked products and
                      convolutions: under a minute, unless the driver compiles for longer
    2  tests          the tests of devices and of conformance, on the GPU
    3  rounds         seconds and memory of a round of FedAvg compared with a bare TensorFlow loop:
                      three networks, 10, 100 and 1,000 clients, with and without TF32
    4  trainings      20 rounds of five algorithms, each on the GPU and on the CPU
    5  long_training  PLGU-LF with ResNet-18, for the rest of --minutes

While a part runs, it writes `partN_NAME.json` and `partN_NAME.log` to DIR. When it ends, a short
table is printed. The next run of the program skips complete parts, and resumes parts that ran out
of time. A part that fails does not stop the next one, but the program's exit code is then 1.

Data sets are read from TFDS_DATA_DIR. With --devices=CPU, all parts run at toy sizes on logical CPU
devices, without a data set.
"""

import pathlib
import sys

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.gpu.runner import PARTS, CheckError, check

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory for the results and logs.")
_PARTS = flags.DEFINE_list(
    "parts", list(map(str, PARTS)), "Numbers of the parts to run; see above."
)
_MINUTES = flags.DEFINE_float(
    "minutes", 45.0, "Time limit for all parts together.", lower_bound=0.0
)
_DEVICES = flags.DEFINE_enum("devices", "GPU", ["GPU", "CPU"], "Devices to check; see above.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    try:
        return check(
            _OUTPUT_DIR.value,
            devices=_DEVICES.value,
            parts=sorted(map(int, _PARTS.value)),
            minutes=_MINUTES.value,
        )
    except (CheckError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


@flags.validator("parts", f"must be among {', '.join(map(str, PARTS))}.")
def _are_parts(numbers):
    return bool(numbers) and set(numbers) <= set(map(str, PARTS))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    app.run(main)

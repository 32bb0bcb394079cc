"""Shows that a GPU does its work, in figures.

    gpu_check.py --output_dir=DIR [--parts=1,3] [--minutes=45] [--devices=CPU]

Five parts, in this order, each a process with a time limit of its own:

    1  device         the driver, the GPU, the libraries that were opened, and products and
                      convolutions, checked: under a minute, unless the driver compiles for longer
    2  tests          the tests of devices and of conformance, on the GPU
    3  rounds         seconds and memory of a round of FedAvg, beside a bare TensorFlow loop: three
                      networks, 10, 100 and 1,000 clients, with TF32 and without
    4  trainings      20 rounds of five algorithms, each on the GPU and on the CPU
    5  long_training  PLGU-LF with ResNet-18, for as long as is left of --minutes

DIR receives `partN_NAME.json` and `partN_NAME.log` while a part runs, and a short table is printed
when it ends. The next run of the program skips complete parts, and goes on with parts that ran out
of time. A part that fails does not stop the next, but the program's exit code is then 1.

Data sets are looked for in TFDS_DATA_DIR. With --devices=CPU all of it runs at toy sizes, which
need no data set, on logical CPU devices.
"""

import pathlib
import sys

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.gpu.runner import PARTS, CheckError, check

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where the figures and logs go.")
_PARTS = flags.DEFINE_list("parts", list(map(str, PARTS)), "Numbers of the parts, see above.")
_MINUTES = flags.DEFINE_float("minutes", 45.0, "How long all may take.", lower_bound=0.0)
_DEVICES = flags.DEFINE_enum("devices", "GPU", ["GPU", "CPU"], "What is checked, see above.")


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


@flags.validator("parts", f"Parts are {', '.join(map(str, PARTS))}.")
def _are_parts(numbers):
    return bool(numbers) and set(numbers) <= set(map(str, PARTS))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    app.run(main)

"""The process of a part; see `gpu.runner`, which starts it.

    PYTHONPATH=programs python -m gpu TASK

TASK is a `Task` as JSON. The part's report says how it went.
"""

import importlib
import json
import sys
import traceback

from gpu.parts import PARTS, Task
from gpu.runner import files_of, report_of
from tff_pfl.runtime.startup import prepare_process


def main(argument: str) -> None:
    task = Task(**json.loads(argument))
    prepare_process()
    report = report_of(task.part, task.output_dir, task.devices)
    try:
        importlib.import_module(PARTS[task.part].module).run(task, report)
    except Exception as error:
        traceback.print_exc()
        report.fail(f"{type(error).__name__}: {error}", files_of(task.part, task.output_dir)[1])
        report.update(seconds=round(task.elapsed(), 1))
    else:
        report.end(task.elapsed())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What `programs/gpu_check.py` runs: proof, in figures, that a machine's GPU does its work.

Nothing that is imported here imports TensorFlow: the modules of the parts do, each in the process
of its part.
"""

from gpu.parts import PARTS, CheckError, Part, Task
from gpu.report import Report
from gpu.runner import check

__all__ = ["PARTS", "CheckError", "Part", "Report", "Task", "check"]

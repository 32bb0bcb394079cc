"""What `programs/gpu_check.py` runs: proof, in figures, that a machine's GPU does its work.

Nothing that is imported here imports TensorFlow: the modules of the parts do, each in the process
of its part.
"""

from tff_pfl.gpu_check.parts import PARTS, CheckError, Part, Task
from tff_pfl.gpu_check.report import Report
from tff_pfl.gpu_check.runner import check

__all__ = ["PARTS", "CheckError", "Part", "Report", "Task", "check"]

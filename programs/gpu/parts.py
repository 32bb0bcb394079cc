"""The parts of the check, and what the process of one is told."""

import dataclasses
import time


class CheckError(RuntimeError):
    """A part found something wrong, or the check cannot be run as it was asked for."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the check.

    Attributes:
        name: What it is about, and the name of its files.
        module: The module whose `run(task, report)` does it.
        minutes: How long its process may take.
    """

    name: str
    module: str
    minutes: float


PARTS = {
    1: Part("device", "gpu.device", 5),
    2: Part("tests", "gpu.suites", 12),
    3: Part("rounds", "gpu.rounds", 15),
    4: Part("trainings", "gpu.trainings", 12),
    5: Part("long_training", "gpu.long_training", 60),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """What the process of a part is told.

    Attributes:
        part: A key of `PARTS`.
        output_dir: Where the check writes.
        root: The repository.
        devices: "GPU", or "CPU" for toy sizes on logical CPU devices.
        seconds: How long the process may take.
        started: When it was started, in seconds since the epoch.
    """

    part: int
    output_dir: str
    root: str
    devices: str
    seconds: float
    started: float

    @property
    def is_toy(self) -> bool:
        """Whether sizes are to be small: the check itself is tried, not a machine."""
        return self.devices == "CPU"

    def elapsed(self) -> float:
        """Seconds since the process was started."""
        return time.time() - self.started

    def left(self) -> float:
        """Seconds until a part that can stop should: a tenth of its time is for the end."""
        return 0.9 * self.seconds - self.elapsed()

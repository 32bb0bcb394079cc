"""What goes wrong with where a program computes."""


class DeviceError(ValueError):
    """A choice of runtime or devices that is impossible; the message names what is possible."""


class WorkerDiedError(RuntimeError):
    """A process that computes for this program did not start, ended, or does not answer."""

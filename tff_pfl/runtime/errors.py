"""Errors of the runtime that programs show without a traceback."""


class DeviceError(ValueError):
    """A choice of runtime or devices is impossible; the message names what is possible."""


class WorkerDiedError(RuntimeError):
    """A process that computes for this program did not start, ended, or does not answer."""

"""Errors of the runtime that programs show without a traceback."""


class DeviceError(ValueError):
    """An error for an impossible choice of runtime or devices; the message names possible ones."""


class WorkerDiedError(RuntimeError):
    """An error for a worker process that did not start, has ended or does not answer."""

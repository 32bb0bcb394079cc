"""Defines the errors of runs."""


class NobodyReportedError(RuntimeError):
    """An error about a round without clients, which the runtime cannot compute."""


class TrackerError(ValueError):
    """An error about a tracker that is unknown, not installed, or does not start."""

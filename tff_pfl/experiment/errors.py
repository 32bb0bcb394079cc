"""Defines the errors of runs."""


class NobodyReportedError(RuntimeError):
    """An error about a round without clients, which the runtime cannot compute."""

"""Errors of client states that are kept."""


class ForeignStateError(ValueError):
    """Stored data is sound, but of another type or made by something else."""


class CorruptStateError(ValueError):
    """Stored data is damaged."""


class StateStoreError(RuntimeError):
    """The store cannot be opened or written now; what it holds is intact."""

"""Errors of stored client states."""


class ForeignStateError(ValueError):
    """An error for stored data that is intact, but has another type or another origin."""


class CorruptStateError(ValueError):
    """An error for stored data that is damaged."""


class StateStoreError(RuntimeError):
    """An error for a store that cannot be opened or written now; its content is intact."""

"""Errors of functions that become computations: each names the block and says what to do."""


class TemplateError(TypeError):
    """A block of a process does not fit; the base class of the errors of blocks."""


class BlockTracingError(TemplateError):
    """A block failed while it was traced with the types that the composer found."""


class RandomnessError(TemplateError):
    """A block draws random numbers that no seed controls, so that runs differ."""


class LabelsError(ValueError):
    """An error for labels that do not fit a task, or the outputs of a model."""

"""Errors of models."""


class KerasModelError(ValueError):
    """A Keras model that cannot be made pure; the message says why and what to change."""


class ExampleValuesError(ValueError):
    """A loss or a metric that is not one number for each example."""

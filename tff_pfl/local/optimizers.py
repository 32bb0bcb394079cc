"""The optimizers of `tff.learning.optimizers` by name, for clients and for the server.

Each registered function has the signature `(learning_rate, <options with defaults>) -> Optimizer`.
TFF documents the options. Numbers are checked, and may be integers or NumPy scalars.
"""

import inspect
from typing import Any

import tensorflow_federated as tff

from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.ranges import at_least, takes, up_to
from tff_pfl.arguments.registry import Registry

OPTIMIZERS = Registry("optimizer", "learning_rate")

_ADAFACTOR = type(tff.learning.optimizers.build_adafactor(0.1))

_RANGES: dict[str, Any] = {
    "learning_rate": at_least(0),
    "beta_1": up_to(0, 1),
    "beta_2": up_to(0, 1),
    "decay": up_to(0, 1),
    "epsilon": at_least(0),
    "initial_preconditioner_value": at_least(0),
    "weight_decay": at_least(0),
}


@OPTIMIZERS.register("sgd")
@takes(learning_rate=at_least(0), momentum=up_to(0, 1))
def sgd(learning_rate: float, *, momentum: float = 0.0) -> tff.learning.optimizers.Optimizer:
    """Makes a stochastic gradient descent optimizer, which has no state if the momentum is 0."""
    return tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)


for _name in ("adagrad", "adam", "adamw", "rmsprop", "yogi"):
    _build = getattr(tff.learning.optimizers, f"build_{_name}")
    _ranges = {option: _RANGES[option] for option in inspect.signature(_build).parameters}
    OPTIMIZERS.register(_name)(takes(**_ranges)(_build))


def check_optimizer(subject: str, optimizer: Any) -> None:
    """Raises a `KindError` unless an argument is an optimizer that can make steps.

    Args:
        subject: The optimizer's name in the message.
        optimizer: The argument.
    """
    tip = "tff.learning.optimizers.build_sgdm(0.1) makes one."
    check_kind(subject, optimizer, tff.learning.optimizers.Optimizer, tip)
    if isinstance(optimizer, _ADAFACTOR):
        raise KindError(
            f"{subject} must not be that of build_adafactor, whose state in TFF 0.87 changes its "
            "type with each step. Use another one, such as tff.learning.optimizers.build_adam."
        )

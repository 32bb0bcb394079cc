"""Optimizers by name, for clients and for the server: those of `tff.learning.optimizers`.

Each is a function `(learning_rate, *, <options with defaults>) -> Optimizer`, whose options TFF
documents. Unlike TFF's, they take integers and NumPy's numbers as well.
"""

import tensorflow_federated as tff

from tff_pfl.ranges import at_least, takes, up_to
from tff_pfl.registry import Registry

OPTIMIZERS = Registry("optimizer", "learning_rate")

Optimizer = tff.learning.optimizers.Optimizer


@OPTIMIZERS.register("sgd")
@takes(learning_rate=at_least(0), momentum=up_to(0, 1))
def sgd(learning_rate: float, *, momentum: float = 0.0) -> Optimizer:
    """Stochastic gradient descent; 0 is no momentum, and no state."""
    return tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)


@OPTIMIZERS.register("adagrad")
@takes(learning_rate=at_least(0), initial_preconditioner_value=at_least(0), epsilon=at_least(0))
def adagrad(
    learning_rate: float, *, initial_preconditioner_value: float = 0.1, epsilon: float = 1e-7
) -> Optimizer:
    """Adagrad (Duchi et al., 2011)."""
    return tff.learning.optimizers.build_adagrad(
        learning_rate, initial_preconditioner_value, epsilon
    )


@OPTIMIZERS.register("adam")
@takes(learning_rate=at_least(0), beta_1=up_to(0, 1), beta_2=up_to(0, 1), epsilon=at_least(0))
def adam(
    learning_rate: float, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7
) -> Optimizer:
    """Adam (Kingma and Ba, 2014)."""
    return tff.learning.optimizers.build_adam(learning_rate, beta_1, beta_2, epsilon)


@OPTIMIZERS.register("adamw")
@takes(
    learning_rate=at_least(0),
    beta_1=up_to(0, 1),
    beta_2=up_to(0, 1),
    epsilon=at_least(0),
    weight_decay=at_least(0),
)
def adamw(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.004,
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017)."""
    return tff.learning.optimizers.build_adamw(learning_rate, beta_1, beta_2, epsilon, weight_decay)


@OPTIMIZERS.register("rmsprop")
@takes(learning_rate=at_least(0), decay=up_to(0, 1), epsilon=at_least(0))
def rmsprop(learning_rate: float, *, decay: float = 0.9, epsilon: float = 1e-7) -> Optimizer:
    """RMSprop (Tieleman and Hinton, 2012)."""
    return tff.learning.optimizers.build_rmsprop(learning_rate, decay, epsilon)


@OPTIMIZERS.register("yogi")
@takes(
    learning_rate=at_least(0),
    beta_1=up_to(0, 1),
    beta_2=up_to(0, 1),
    epsilon=at_least(0),
    initial_preconditioner_value=at_least(0),
)
def yogi(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
    initial_preconditioner_value: float = 1e-6,
) -> Optimizer:
    """Yogi (Zaheer et al., 2018)."""
    return tff.learning.optimizers.build_yogi(
        learning_rate, beta_1, beta_2, epsilon, initial_preconditioner_value
    )

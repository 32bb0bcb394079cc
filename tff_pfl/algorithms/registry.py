"""The registry of algorithms, and functions that make algorithms and processes by name.

An algorithm is a function `(model, local, *, <federation>, <hyper-parameters>) -> Algorithm`. Its
keyword arguments with defaults are the hyper-parameters that a config may set. Those without a
default, such as `num_clients`, are facts about the federation.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import absl.logging
import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.kinds import check_kind, function_of
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.recipes import Recipe, remember
from tff_pfl.arguments.registry import Registry
from tff_pfl.arguments.tracebacks import with_short_tracebacks
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model
from tff_pfl.templates import Algorithm, Federation, Ingredients, PersonalizedProcess, compose
from tff_pfl.tracing.errors import TemplateError

ALGORITHMS = Registry("algorithm", "model", "local")
# Keyword arguments that are not hyper-parameters: facts about the federation, and objects that have
# config sections of their own.
FROM_ELSEWHERE = (
    *Federation._fields,
    *("aggregator", "server_optimizer"),
)


def hyperparameters(name: str) -> dict[str, Any]:
    """Returns the hyper-parameters of an algorithm with their defaults.

    Example:
        >>> tff_pfl.hyperparameters("ditto")
        {'lambda_': 0.1, 'personal_epochs': None, 'weighting': 'num_examples'}

    Raises:
        UnknownNameError: The name is unknown; the message suggests the nearest one.
    """
    return _hyperparameters(ALGORITHMS[name])


def _hyperparameters(function) -> dict[str, Any]:
    options = ALGORITHMS.options_of(function).items()
    return {option: default for option, default in options if option not in FROM_ELSEWHERE}


def idle_where(*options: str, **switch: Any) -> Callable[[Callable], Callable]:
    """Declares options of an algorithm that have no effect with one value of another option.

    A call with that value logs a warning if it changes the default of one of these options. "local"
    is the local training, of which that value leaves the learning rate: programs warn about other
    settings of it. The decorator stands below `ALGORITHMS.register`.

    Example:
        >>> @tff_pfl.idle_where("beta", momentum=False)
        ... def my_method(model, local, *, momentum=False, beta=0.9):
        ...     return beta
        >>> my_method(None, None, beta=0.5)  # logs "beta=0.5 of my_method has no effect ..."
        0.5

    Args:
        *options: The options that have no effect.
        **switch: The other option and its value.
    """
    ((name, value),) = switch.items()

    def decorate(function):
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args, **kwargs):
            idle = [
                option
                for option in kwargs.keys() & set(options) - {"local"}
                if not np.array_equal(kwargs[option], parameters[option].default)
            ]
            if idle and kwargs.get(name, parameters[name].default) == value:
                absl.logging.warning(
                    "%s of %s has no effect with %s=%r.",
                    " and ".join(f"{option}={kwargs[option]!r}" for option in sorted(idle)),
                    *(function.__name__, name, value),
                )
            return function(*args, **kwargs)

        if "local" in options:
            call.__local_idle_where__ = name, value
        return call

    return decorate


def local_idle_where(name: str) -> tuple[str, Any] | None:
    """Returns the option and the value with which local training is idle, by `idle_where`.

    Raises:
        UnknownNameError: The name is unknown; the message suggests the nearest one.
    """
    return getattr(function_of(ALGORITHMS[name]), "__local_idle_where__", None)


@with_short_tracebacks
def make(
    method: str | Callable[..., Algorithm],
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int | None = None,
    clients_per_round: int | None = None,
    largest_cohort: int | None = None,
    **options: Any,
) -> Algorithm:
    """Makes an algorithm by its name, or by its function.

    The three numbers of the federation are passed only to algorithms that have such an argument.
    `tff_pfl.train` refuses a federation that differs from the numbers passed.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("ditto", model, local, lambda_=0.5)
        >>> algorithm.name
        'ditto'

    Args:
        method: A key of `ALGORITHMS`, or a function that could be registered there. Only the
            experiment of a registered one can be evaluated and exported without its script.
        model: The model.
        local: The local training.
        num_clients: The number of clients of the federation.
        clients_per_round: The expected number of clients in a round.
        largest_cohort: The largest number of clients in a round.
        **options: Other keyword arguments of the algorithm.

    Raises:
        UnknownNameError: The algorithm or an option is unknown; the message suggests the nearest
            name.
        TemplateError: The function does not return an `Algorithm`.
        TypeError: A number of the federation is missing, `model` is not a `Model`, or `local` is
            not a `LocalTraining`.
    """
    check_kind("The model", model, Model, "tff_pfl.from_keras makes one of a Keras model.")
    check_kind("The local training", local, LocalTraining)
    name, function = _named(method)
    needed = ALGORITHMS.parameters_of(function)
    taken = list(inspect.signature(function).parameters.values())[2:]  # after model and local
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        check_names(f"option of algorithm {name!r}", options, [p.name for p in taken])
    federation = Federation(num_clients, clients_per_round, largest_cohort)._asdict()
    known = {key: value for key, value in federation.items() if key in needed and value is not None}
    for key, parameter in needed.items():
        if key in federation.keys() - known.keys() and parameter.default is parameter.empty:
            raise TypeError(f"The algorithm {name!r} needs {key}: pass {key}=...")
    algorithm = function(model, local, **known, **options)
    if not isinstance(algorithm, Algorithm):
        raise TemplateError(
            f"The algorithm {name!r} must return a tff_pfl.Algorithm, got {algorithm!r:.80}."
        )
    options = _hyperparameters(function) | options
    made = dataclasses.replace(
        algorithm,
        name=name,
        evaluated_model=algorithm.evaluated_model or model,
        made_for=Federation(**known),
        made_of=Ingredients(model, local, options),
    )
    if name in ALGORITHMS and ALGORITHMS[name] is function:
        remember(made, Recipe(ALGORITHMS.kind, name, options, function_of(function).__module__))
    return made


def _named(method) -> tuple[str, Callable[..., Algorithm]]:
    """Returns the name and the function of a method that is given by one of them."""
    if not callable(method):
        return method, ALGORITHMS[method]
    registered = (name for name, function in ALGORITHMS.items() if function is method)
    return next(registered, getattr(function_of(method), "__name__", "own")), method


def build(
    method: str | Callable[..., Algorithm],
    model: Model,
    examples_type: tff.types.Type,
    local: LocalTraining,
    *,
    seed: int = 0,
    **options: Any,
) -> PersonalizedProcess:
    """Makes an algorithm by its name, or by its function, and composes its process.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> process = tff_pfl.algorithms.build("fedavg", model, testing.EXAMPLES_TYPE, local)
        >>> int(process.initialize().round_num)
        0

    Args:
        method: See `make`.
        model: The model.
        examples_type: The TFF type of a client's examples.
        local: The local training.
        seed: The seed of the initial states and of all random numbers of client work.
        **options: See `make`.
    """
    return compose(make(method, model, local, **options), examples_type, seed)

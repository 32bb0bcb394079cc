"""The algorithms by name, and processes made of them.

An algorithm is a function `(model, local, *, <federation>, <hyper-parameters>) -> Algorithm`. Its
keyword arguments, with their defaults, are the hyper-parameters that a config may set; those
without a default, such as `num_clients`, are what it needs to know of the federation.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import absl.logging
import numpy as np
import tensorflow_federated as tff

from tff_pfl.kinds import check_kind, function_of
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.registry import Registry
from tff_pfl.templates import Algorithm, Federation, PersonalizedProcess, compose
from tff_pfl.templates.errors import TemplateError

ALGORITHMS = Registry("algorithm", "model", "local")
# Keyword arguments that are no hyper-parameters: what the federation is, and objects, for which
# configs have sections of their own.
FROM_ELSEWHERE = (
    *Federation._fields,
    *("aggregator", "server_optimizer"),
)


def hyperparameters(name: str) -> dict[str, Any]:
    """Returns the hyper-parameters of an algorithm, with their defaults.

    Raises:
        UnknownNameError: For an unknown name; it gives the nearest one.
    """
    return {
        option: default
        for option, default in ALGORITHMS.options(name).items()
        if option not in FROM_ELSEWHERE
    }


def trains_where(**switch: Any) -> Callable[[Callable], Callable]:
    """Declares with which value of an option an algorithm's clients train.

        @ALGORITHMS.register("my_method")
        @trains_where(gradient="pseudo")
        def my_method(model, local, *, gradient="full"): ...

    With another value, which asks for exact gradients, it takes nothing of the local training but
    the learning rate; programs then warn of flags of the rest.

    Args:
        **switch: The option, and that value of it.
    """

    def decorate(function):
        (function.__trains_where__,) = switch.items()
        return function

    return decorate


def idle_where(*options: str, **switch: Any) -> Callable[[Callable], Callable]:
    """Declares options of an algorithm that have no effect with one value of another option.

        @ALGORITHMS.register("my_method")
        @idle_where("beta", momentum=False)
        def my_method(model, local, *, momentum=False, beta=0.9): ...

    A call with that value logs a warning if it sets one of these options to other than its default.

    Args:
        *options: The options without an effect.
        **switch: The other option with that value.
    """
    ((name, value),) = switch.items()

    def decorate(function):
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args, **kwargs):
            idle = [
                option
                for option in kwargs.keys() & set(options)
                if not np.array_equal(kwargs[option], parameters[option].default)
            ]
            if idle and kwargs.get(name, parameters[name].default) == value:
                absl.logging.warning(
                    "%s of %s has no effect with %s=%r.",
                    " and ".join(f"{option}={kwargs[option]!r}" for option in sorted(idle)),
                    *(function.__name__, name, value),
                )
            return function(*args, **kwargs)

        return call

    return decorate


def training_switch(name: str) -> tuple[str, Any] | None:
    """Returns the option and the value that `trains_where` names, or `None` without it.

    Raises:
        UnknownNameError: For an unknown name; it gives the nearest one.
    """
    return getattr(function_of(ALGORITHMS[name]), "__trains_where__", None)


def make(
    name: str,
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int | None = None,
    clients_per_round: int | None = None,
    largest_cohort: int | None = None,
    **options: Any,
) -> Algorithm:
    """Makes an algorithm by its name.

    Args:
        name: A key of `ALGORITHMS`.
        model: The model.
        local: The local training.
        num_clients: Clients of the federation, for an algorithm that needs to know.
        clients_per_round: How many are expected in a round, for an algorithm that needs to know.
        largest_cohort: The most clients of a round, likewise. `tff_pfl.train` refuses a federation
            that is not the one which an algorithm was told of, by any of the three.
        **options: Its other keyword arguments; those left out have their defaults.

    Raises:
        UnknownNameError: For an unknown name, of an algorithm or an option; it gives the nearest
            one.
        TemplateError: If it does not return an `Algorithm`.
        TypeError: If it needs to know more of the federation; or `model` is not a `Model`, or
            `local` not a `LocalTraining`.
    """
    check_kind("The model", model, Model, "tff_pfl.from_keras makes one of a Keras model.")
    check_kind("The local training", local, LocalTraining)
    needed, function = ALGORITHMS.parameters(name), ALGORITHMS[name]
    taken = list(inspect.signature(function).parameters.values())[2:]  # after model and local
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        check_names(f"option of algorithm {name!r}", options, [p.name for p in taken])
    federation = Federation(num_clients, clients_per_round, largest_cohort)._asdict()
    known = {key: value for key, value in federation.items() if key in needed and value is not None}
    for key, parameter in needed.items():
        if key in federation.keys() - known.keys() and parameter.default is parameter.empty:
            raise TypeError(f"The algorithm {name!r} needs to know {key}; give {key}=...")
    algorithm = function(model, local, **known, **options)
    if not isinstance(algorithm, Algorithm):
        raise TemplateError(
            f"The algorithm {name!r} must return a tff_pfl.Algorithm, got {algorithm!r:.80}."
        )
    return dataclasses.replace(algorithm, name=name, made_for=Federation(**known))


def build(
    name: str,
    model: Model,
    examples_type: tff.types.Type,
    local: LocalTraining,
    *,
    seed: int = 0,
    **options: Any,
) -> PersonalizedProcess:
    """Composes a process of an algorithm by its name.

    Args:
        name: A key of `ALGORITHMS`.
        model: The model.
        examples_type: TFF type of a client's examples.
        local: The local training.
        seed: Of the initial states, and of all randomness of client work.
        **options: See `make`.
    """
    return compose(make(name, model, local, **options), examples_type, seed)

"""Registers functions by name: algorithms, data sets, networks, optimizers and so on.

    NETWORKS = Registry("model", "image_shape", "num_classes")

    @NETWORKS.register("mlp")
    def mlp(image_shape, num_classes, *, hidden=(200, 200)): ...

    NETWORKS["mlp"]            # the function
    NETWORKS.options("mlp")    # {"hidden": (200, 200)}
    NETWORKS["mpl"]            # UnknownNameError: Unknown model 'mpl'. Did you mean 'mlp'? ...

A registered name works wherever users choose by name, also in configs. `config.imports` lists the
modules to import for their registrations.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tff_pfl.arguments.kinds import check_kind, signature_of
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.recipes import remembering

_Registered = TypeVar("_Registered", bound=Callable[..., Any])


class Registry(Mapping[str, Callable[..., Any]]):
    """A mapping from names to functions, sorted by name.

    Attributes:
        kind: The kind of the registered functions, such as "model", for messages.
        takes: The positional arguments of the functions. All other arguments are options.
    """

    def __init__(self, kind: str, *takes: str):
        """Initializes an empty registry; see the attributes of the class."""
        self.kind = kind
        self.takes = takes
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[_Registered], _Registered]:
        """Decorates a function, or a `functools.partial` of one, to register it under a name.

        Results of the decorated function have recipes, see `tff_pfl.arguments.recipes`.

        Registering the same function again, as when its module is reloaded, replaces the first.

        Raises:
            TypeError: The name is not text, as in `@NETWORKS.register` without a call, or the
                function has an option `name`, which in configs holds the registered name.
            ValueError: Another function has this name already.
        """
        check_kind(f"The name of the {self.kind}", name, str, 'Write .register("my_name").')

        def decorate(registered: _Registered) -> _Registered:
            existing = self._registered.get(name)
            if existing is not None and _source(existing) != _source(registered):
                raise ValueError(
                    f"{_source(registered)} cannot be the {self.kind} {name!r}: "
                    f"{_source(existing)} has that name."
                )
            if "name" in _options(registered, len(self.takes)):
                raise TypeError(
                    f"The {self.kind} {name!r} has an option `name`, but in a config `name` is "
                    f"{name!r}. Rename the option."
                )
            if not isinstance(registered, type | functools.partial):
                registered = remembering(self.kind, name)(registered)
            self._registered[name] = registered
            return registered

        return decorate

    def variant(
        self, name: str, function: Callable[..., Any], /, **options: Any
    ) -> Callable[..., Any]:
        """Registers a function with other defaults for some of its options."""
        return self.register(name)(functools.partial(function, **options))

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Returns the options of a registered function: its parameters by name, except `takes`.

        Raises:
            UnknownNameError: The name is unknown. The message suggests a similar one.
        """
        return self.parameters_of(self[name])

    def parameters_of(self, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
        """Returns the options of a function that could be registered."""
        return dict(_options(function, len(self.takes)))

    def options(self, name: str) -> dict[str, Any]:
        """Returns the options of a registered function that have a default, with the defaults.

        Raises:
            UnknownNameError: The name is unknown. The message suggests a similar one.
        """
        return self.options_of(self[name])

    def options_of(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Returns the options of a function that could be registered, which have a default."""
        parameters = self.parameters_of(function).items()
        return {name: p.default for name, p in parameters if p.default is not p.empty}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Returns the function with a name.

        Raises:
            KindError: `name` is a function instead.
            UnknownNameError: The name is unknown. The message suggests a similar one.
        """
        if callable(name):
            tip = "Call the function itself, or register it under a name."
            check_kind(f"The {self.kind}", name, str, tip, named="a name")
        check_names(self.kind, [name], self)
        return self._registered[name]

    def __contains__(self, name: object) -> bool:
        """Returns whether a function has this name."""
        return name in self._registered

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names in sorted order."""
        return iter(sorted(self._registered))

    def __len__(self) -> int:
        """Returns the number of registered functions."""
        return len(self._registered)


@functools.cache
def _options(function, num_taken) -> dict[str, inspect.Parameter]:
    parameters = list(signature_of(function).parameters.values())[num_taken:]
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY or _is_setting(p)}


def _is_setting(parameter: inspect.Parameter) -> bool:
    """Returns whether an argument that is not keyword-only is an option: its default is a value."""
    is_value = isinstance(parameter.default, bool | int | float | str | tuple)
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD and is_value


def _source(function: Callable[..., Any]) -> str:
    """Returns text that identifies a function by its module and name."""
    if isinstance(function, functools.partial):
        return f"{_source(function.func)} of {function.args} and {function.keywords}"
    return f"{function.__module__}.{function.__qualname__}"

"""Registries of functions by name: algorithms, data sets, networks, optimizers and so on.

    NETWORKS = Registry("model", "image_shape", "num_classes")

    @NETWORKS.register("mlp")
    def mlp(image_shape, num_classes, *, hidden=(200, 200)): ...

    NETWORKS["mlp"]            # the function
    NETWORKS.options("mlp")    # {"hidden": (200, 200)}
    NETWORKS["mpl"]            # UnknownNameError: Unknown model 'mpl'. Did you mean 'mlp'? ...

A registered name can be used wherever one is asked for, in configs too; `config.imports` names
the modules that register names.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tff_pfl.kinds import check_kind, signature_of
from tff_pfl.names import check_names

_Registered = TypeVar("_Registered", bound=Callable[..., Any])


class Registry(Mapping[str, Callable[..., Any]]):
    """A mapping from names to functions, sorted by name.

    Attributes:
        kind: The kind of thing that is registered, for messages.
        takes: The arguments that functions are called with by position; all others are options.
    """

    def __init__(self, kind: str, *takes: str):
        self.kind = kind
        self.takes = takes
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[_Registered], _Registered]:
        """Decorates a function, or a `functools.partial` of one, that gets a name.

        A function that is registered again, as when its module is reloaded, replaces the first.

        Raises:
            TypeError: If the name is not text, as in `@NETWORKS.register` without a call, or the
                function has an option `name`, which is the key of the choice itself in configs.
            ValueError: If another function has that name already.
        """
        check_kind(f"The name of the {self.kind}", name, str, 'Write .register("my_name").')

        def decorate(registered: _Registered) -> _Registered:
            there = self._registered.get(name)
            if there is not None and _source(there) != _source(registered):
                raise ValueError(
                    f"{_source(registered)} cannot be the {self.kind} {name!r}: "
                    f"{_source(there)} has that name."
                )
            if "name" in _options(registered, len(self.takes)):
                raise TypeError(
                    f"The {self.kind} {name!r} has an option `name`, where a config has {name!r}. "
                    "Call it something else."
                )
            self._registered[name] = registered
            return registered

        return decorate

    def variant(self, name: str, of: Callable[..., Any], /, **options: Any) -> Callable[..., Any]:
        """Registers a function with other defaults for some of its keyword arguments."""
        return self.register(name)(functools.partial(of, **options))

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Returns the options of a registered function, by name: what it takes beside `takes`.

        Raises:
            UnknownNameError: For an unknown name; it gives the nearest one.
        """
        return dict(_options(self[name], len(self.takes)))

    def options(self, name: str) -> dict[str, Any]:
        """Returns the defaults of the options that have one.

        Raises:
            UnknownNameError: For an unknown name; it gives the nearest one.
        """
        parameters = self.parameters(name).items()
        return {name: p.default for name, p in parameters if p.default is not p.empty}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        check_names(self.kind, [name], self)
        return self._registered[name]

    def __contains__(self, name: object) -> bool:
        return name in self._registered

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._registered))

    def __len__(self) -> int:
        return len(self._registered)


@functools.cache
def _options(function, num_taken) -> dict[str, inspect.Parameter]:
    parameters = list(signature_of(function).parameters.values())[num_taken:]
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY or _is_setting(p)}


def _is_setting(parameter: inspect.Parameter) -> bool:
    """Returns whether an argument without a `*` before it is an option: not an object."""
    is_value = isinstance(parameter.default, bool | int | float | str | tuple)
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD and is_value


def _source(function: Callable[..., Any]) -> str:
    """Returns where a function comes from, as text that identifies it."""
    if isinstance(function, functools.partial):
        return f"{_source(function.func)} of {function.args} and {function.keywords}"
    return f"{function.__module__}.{function.__qualname__}"

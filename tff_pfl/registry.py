"""Names for what users choose: algorithms, data sets, networks, optimizers and their like.

    NETWORKS = Registry("model", "image_shape", "num_classes")

    @NETWORKS.register("mlp")
    def mlp(image_shape, num_classes, *, hidden=(200, 200)): ...

    NETWORKS["mlp"]            # the function
    NETWORKS.options("mlp")    # {"hidden": (200, 200)}
    NETWORKS["mpl"]            # UnknownNameError: Unknown model 'mpl'. Did you mean 'mlp'? ...

Whoever registers something under a name can use the name wherever one is asked for, in configs
too; `config.imports` names the modules that do.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tff_pfl.kinds import check_kind, signature_of
from tff_pfl.names import check_names

_Registered = TypeVar("_Registered", bound=Callable[..., Any])


class Registry(Mapping[str, Callable[..., Any]]):
    """Functions by names, in the order of the names.

    Attributes:
        kind: What the names are names of, for messages.
        takes: The arguments that functions are called with by position.
    """

    def __init__(self, kind: str, *takes: str):
        self.kind = kind
        self.takes = takes
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[_Registered], _Registered]:
        """Decorates a function, or a `functools.partial` of one, that gets a name.

        What is registered again under its name, as when its module is reloaded, takes its place.

        Raises:
            TypeError: If the name is none, as where `register` decorates without one; or the
                function has an option without a `*` before it, which would be none; or one called
                `name`, where configs have that of what is chosen.
            ValueError: If another one has that name already.
        """
        check_kind(f"The name of the {self.kind}", name, str, 'Write .register("my_name").')

        def decorate(registered: _Registered) -> _Registered:
            there = self._registered.get(name)
            if there is not None and _source(there) != _source(registered):
                raise ValueError(
                    f"{_source(registered)} cannot be the {self.kind} {name!r}: "
                    f"{_source(there)} has that name."
                )
            self._check_options(name, registered)
            self._registered[name] = registered
            return registered

        return decorate

    def _check_options(self, name, registered):
        signature = inspect.signature(registered)
        parameters = list(signature.parameters.values())
        try:
            signature.bind_partial(*self.takes)
        except TypeError as error:
            raise TypeError(
                f"The {self.kind} {name!r} is called with ({', '.join(self.takes)}), but {error}."
            ) from error
        for parameter in parameters[len(self.takes) :]:
            is_value = isinstance(parameter.default, bool | int | float | str | tuple)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and is_value:
                arguments = ", ".join([*self.takes, "*", f"{parameter.name}={parameter.default!r}"])
                raise TypeError(
                    f"{parameter.name} is no option of the {self.kind} {name!r}: options have a "
                    f"`*` before them, as in ({arguments})."
                )
        if any(p.name == "name" and p.kind is p.KEYWORD_ONLY for p in parameters):
            raise TypeError(
                f"The {self.kind} {name!r} has an option `name`, where a config has {name!r}. "
                "Call it something else."
            )

    def variant(self, name: str, of: Callable[..., Any], /, **options: Any) -> Callable[..., Any]:
        """Registers a function with other defaults for some of its keyword arguments."""
        return self.register(name)(functools.partial(of, **options))

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters of a registered function that take keyword arguments only, by name.

        Raises:
            UnknownNameError: For an unknown name; it gives the nearest one.
        """
        return dict(_keyword_parameters(self[name]))

    def options(self, name: str) -> dict[str, Any]:
        """Those of `parameters` that have a default, with it.

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
def _keyword_parameters(function) -> dict[str, inspect.Parameter]:
    parameters = signature_of(function).parameters.items()
    return {name: p for name, p in parameters if p.kind is p.KEYWORD_ONLY}


def _source(function: Callable[..., Any]) -> str:
    """Where a function comes from, as text that only the same one has."""
    if isinstance(function, functools.partial):
        return f"{_source(function.func)} of {function.args} and {function.keywords}"
    return f"{function.__module__}.{function.__qualname__}"

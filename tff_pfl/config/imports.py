"""Imports the user's own modules that a config names, which register further choices."""

import importlib
import os
import pathlib
import sys
from collections.abc import Collection, Iterable, Sequence

from tff_pfl.arguments.tracebacks import place
from tff_pfl.config.errors import ConfigError

_looked_in: dict[str, None] = {}  # the folders that were put at the front of Python's path


def look_in(folders: Iterable[str]) -> None:
    """Puts folders at the front of Python's path, and adds the working directory to it.

    Raises:
        ConfigError: A folder has a module whose name is that of an imported one from another such
            folder: Python would take one for the other.
    """
    first = list(dict.fromkeys(folders))
    for folder in map(os.path.abspath, first):
        _check_names(folder)
        _looked_in[folder] = None
    if os.getcwd() not in [*first, *sys.path]:
        first.append(os.getcwd())
    sys.path[:] = first + [folder for folder in sys.path if folder not in first]
    importlib.invalidate_caches()


def _check_names(folder):
    for file in pathlib.Path(folder).glob("*.py"):
        imported = getattr(sys.modules.get(file.stem), "__file__", None) or file
        other = os.path.dirname(imported)
        if other != os.path.dirname(file) and other in _looked_in:
            raise ConfigError(
                f"{folder} and {other} both have a module {file.stem!r}, and one process can only "
                "import one of them. Rename one, or train its runs by another program."
            )


def folders_of(names: Iterable[str]) -> list[str]:
    """Returns the folders in which the packages of imported modules were found."""
    packages = dict.fromkeys(name.partition(".")[0] for name in names)
    files = [pathlib.Path(sys.modules[name].__file__ or "") for name in packages]
    return [os.path.dirname(it.parent if it.name == "__init__.py" else it) for it in files]


def import_modules(
    names: Sequence[str],
    folders: Iterable[str] = (),
    trust_imports: bool | Collection[str] = True,
) -> None:
    """Imports modules by their dotted names.

    Args:
        names: The names of modules, such as "my_package.methods".
        folders: See `look_in`.
        trust_imports: See `config_of_run`.

    Raises:
        ConfigError: A module is not trusted, in which case no module is imported; or a module
            cannot be imported. The message has the searched folders or the line that failed.
    """
    if not names:
        return
    if trust_imports is not True:
        trusted = [trust_imports] if isinstance(trust_imports, str) else trust_imports or ()
        _check_trusted(names, folders, trusted)
        folders = ()
    look_in(folders)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a user's code may raise any error
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(
                    f"config.imports: there is no module {name!r} in {', '.join(_folders())}, nor "
                    "among the installed packages."
                ) from error
            raise ConfigError(failure(f"config.imports: module {name!r}", error)) from error


def _check_trusted(names, folders, trusted):
    unknown = [name for name in names if name not in trusted and name not in sys.modules]
    if unknown:
        modules = ", ".join(map(repr, unknown))
        places = f", from {', '.join(map(str, folders))}" if folders else ""
        raise ConfigError(
            f"The config of the run imports {modules}{places}, which executes their code. Pass "
            f"--trust_imports if you trust the run, or --imports={','.join(names)} to import your "
            "own from the working directory (in Python: trust_imports=True or their names)."
        )


def _folders():
    """Returns the folders of Python's path, without installed packages."""
    installed = tuple({sys.prefix, sys.base_prefix})
    return [os.path.abspath(folder) for folder in sys.path if not folder.startswith(installed)]


def failure(name: str, error: Exception) -> str:
    """Returns the message for an error of a user's own code, with the line that failed."""
    message = f"{name} fails: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # its message has the line already
        return message
    return f"{message}{place(error)}"

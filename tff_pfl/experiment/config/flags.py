"""Flags of programs, with those of single keys of a config."""

import copy
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_collections
from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from tff_pfl.experiment import config as configs
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.imports import failure, import_modules, look_in
from tff_pfl.runtime.startup import announce_tensorflow

# What `ml_collections`, `absl` and a file of a config raise for mistakes.
_MISTAKES = (
    flags.Error,
    AttributeError,
    ImportError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
)


def define_import_flags() -> Callable[[], bool | list[str]]:
    """Defines the flags that say which modules of a saved run may be imported.

    Returns:
        A function that returns the `trust_imports` of `config_of_run`, once flags are parsed.
    """
    trust = flags.DEFINE_bool(
        "trust_imports",
        False,
        "Import the modules that the run's config names, from the folders that it names. This "
        "executes code of whoever made the run.",
    )
    imports = flags.DEFINE_list(
        "imports", [], "The modules of the run's config to import from the working directory."
    )
    return lambda: trust.value or imports.value


class ConfigFileParser(ConfigFileFlagParser):
    """Parses `--config=FILE.py:CHOICE`, with all options of what the file and other flags choose.

    With `--config.model.name=NAME`, the options that the file has for another model give way to
    the defaults of this one; and so for all else that is chosen by name. Modules that
    `--config.imports` names are imported before the file is loaded.
    """

    def __init__(self, argv: Sequence[str]):
        """Prepares the parser for a command line."""
        super().__init__("config")
        self._overrides = dict(_overrides(argv))

    def parse(self, path: str) -> ml_collections.ConfigDict:
        """Returns the config of a file.

        Raises:
            ValueError: For an unknown name, an option of another type, or a module that cannot be
                imported; or if the file fails, with its own error.
            OSError: If there is no such file.
        """
        file = path.partition(":")[0]
        folder = os.path.dirname(os.path.abspath(file))
        look_in([folder])
        open(file).close()  # ml_collections would raise it when the config is used
        announce_tensorflow()
        imports, folders = (
            tuple_parser.TupleParser().parse(self._overrides.get(key, ()))
            for key in ("imports", "import_path")
        )
        import_modules(imports, folders)
        try:
            config = super().parse(path)
        except (TypeError, ValueError) as error:
            raise error.__context__ or error from None  # the file's own, without its traceback
        except Exception as error:  # whatever a user's code raises, below this function
            error.__traceback__ = error.__traceback__.tb_next
            raise ValueError(failure("the file", error)) from None
        if not isinstance(config, ml_collections.ConfigDict):
            raise ValueError(
                f"get_config() of {file} must return a config, such as default_config(...), but it "
                f"returned {config!r:.60}."
            )
        if imports or config.get("imports"):
            with config.unlocked():
                config.import_path = tuple(dict.fromkeys((*folders, folder, os.getcwd())))
        configs.complete(config, self._overrides)
        return config


class _NumberOrNone(flags.ArgumentParser):
    """Parses a number, or `None`; where that is no value, `check_config` says so."""

    def __init__(self, number: flags.ArgumentParser):
        self._number = number
        self.syntactic_help = f"{number.syntactic_help}, or None"

    def parse(self, argument):
        return None if argument == "None" else self._number.parse(argument)

    def flag_type(self):
        return self._number.flag_type()


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses flags for `absl.app.run`; a mistake is answered with one message, not a traceback.

    Flags of a config for numbers take `None` as well; see also `ConfigFileParser`. Flags that have
    no effect are warned of.
    """
    try:
        positional = _parse(flags.FLAGS, argv)
    except _MISTAKES as error:
        print(f"error: {_reason(error)}\nPass --help for the flags.", file=sys.stderr)
        sys.exit(1)
    config = flags.FLAGS["config"].value if "config" in flags.FLAGS else None
    if config is not None:
        for idle in configs.unused_settings(config, [key for key, _ in _overrides(argv)]):
            print(f"warning: --{idle}", file=sys.stderr)
    return positional


def read_config(arguments: Sequence[str]) -> ml_collections.ConfigDict:
    """Returns the config of a command line, checked as by the program that would be given it.

    Args:
        arguments: Flags of the config alone, as "--config=FILE.py:CHOICE", "--config.rounds=3".

    Raises:
        ConfigError: If the program would refuse it; as far as no data are needed to know.
    """
    argv = ["", *arguments]
    holder = flags.FlagValues()
    loaded = config_flags.DEFINE_config_file("config", flag_values=holder, sys_argv=argv)
    try:
        _parse(holder, argv)
    except _MISTAKES as error:
        raise ConfigError(_reason(error)) from error
    configs.check_config(loaded.value)
    return loaded.value


def _parse(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    if "config" in values:
        _check_other_flags(values, argv)
        values["config"].parser = ConfigFileParser(argv)
    config_flags.register_flag_parser_for_type(int, _NumberOrNone(flags.IntegerParser()))
    config_flags.register_flag_parser_for_type(float, _NumberOrNone(flags.FloatParser()))
    return values(argv)


def _check_other_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Parses a copy of the flags without those of a config, whose file would load TensorFlow."""
    others = copy.deepcopy(values)
    delattr(others, "config")
    flags.DEFINE_string("config", None, "", flag_values=others)
    others([argument for argument in argv if not re.match(r"--?(no)?config\.", argument)])


def _reason(error: Exception) -> str:
    """Returns what a user needs to know of an error of `ml_collections` or `absl`."""
    reason = error
    if isinstance(error, OSError):
        return str(error)
    while isinstance(reason, Exception):  # some are wrapped in one another
        reason = reason.args[0] if reason.args else type(reason).__name__
    reason = str(reason).strip()
    if isinstance(error, AttributeError | KeyError):  # with "Did you mean" in another line
        return f"Unknown config key {'. '.join(reason.splitlines())}"
    if "Traceback" in reason:
        # A config file that fails comes with a traceback, whose last line says why.
        return reason.splitlines()[-1].partition(": ")[2]
    # What a validator says of several flags begins with the values of all.
    return re.sub(r"^flags \w+=.*?: ", "", reason)


def _overrides(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the key and the value of each flag of a single key."""
    pattern = re.compile(r"--?config\.([^=]+)(?:=(.*))?", re.DOTALL)
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := pattern.fullmatch(argument):
            key, value = match.groups()
            yield key, following if value is None else value

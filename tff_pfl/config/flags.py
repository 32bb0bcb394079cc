"""Parses the flags of programs, including the flags of single config keys."""

import copy
import keyword
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_collections
from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from tff_pfl import config as configs
from tff_pfl.config.errors import ConfigError
from tff_pfl.config.imports import failure, import_modules, look_in
from tff_pfl.output.files import with_home
from tff_pfl.runtime.startup import announce_tensorflow
from tff_pfl.shipped import config_file

# The errors that `ml_collections`, `absl` and config files raise for mistakes.
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
    """Defines the flags that choose which modules of a saved run may be imported.

    Returns:
        A function that returns the `trust_imports` of `config_of_run` after flags are parsed.
    """
    trust = flags.DEFINE_bool(
        "trust_imports",
        False,
        "Import the modules that the run's config names, from the folders that it names. This "
        "executes their code: trust the run's author.",
    )
    imports = flags.DEFINE_list(
        "imports", [], "The modules of the run's config to import from the working directory."
    )
    return lambda: trust.value or imports.value


class ConfigFileParser(ConfigFileFlagParser):
    """A parser of `--config=FILE.py:CHOICE` that adds the options of everything chosen by name.

    If a flag such as `--config.model.name=NAME` chooses another name than the file, the defaults of
    the new choice replace the options in the file. The modules of `--config.imports` are imported
    before the file is loaded.
    """

    def __init__(self, argv: Sequence[str]):
        """Prepares the parser for a command line."""
        super().__init__("config")
        self._overrides = dict(settings_of(argv))

    def parse(self, path: str) -> ml_collections.ConfigDict:
        """Returns the config of a file.

        Raises:
            ValueError: The file fails, a name is unknown, an option has the wrong type, or a module
                cannot be imported.
            OSError: The file does not exist.
        """
        path = config_file(path)
        file = path.partition(":")[0]
        folder = os.path.dirname(os.path.abspath(file))
        look_in([folder])
        open(file).close()  # ml_collections raises the error only when the config is used
        announce_tensorflow()
        imports, folders = (
            tuple_parser.TupleParser().parse(self._overrides.get(key, ()))
            for key in ("imports", "import_path")
        )
        import_modules(imports, folders)
        try:
            config = super().parse(path)
        except (TypeError, ValueError) as error:
            raise error.__context__ or error from None  # the file's own error, without a traceback
        except Exception as error:  # a user's code may raise any error
            here = error.__traceback__
            error.__traceback__ = here and here.tb_next
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
    """A parser of a number or `None`; `check_config` checks where `None` is allowed."""

    def __init__(self, number: flags.ArgumentParser):
        self._number = number
        self.syntactic_help = f"{number.syntactic_help}, or None"

    def parse(self, argument):
        """Returns the number or `None`."""
        return None if argument == "None" else self._number.parse(argument)

    def flag_type(self):
        """Returns the name of the number's type."""
        return self._number.flag_type()


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses flags for `absl.app.run`, and prints mistakes as one message without a traceback.

    Flags for numbers of a config also accept `None`. A warning is printed for each flag of a config
    that has no effect. `~` at the beginning of a value is the home directory, which shells only
    expand at the beginning of a word. See also `ConfigFileParser`.
    """
    argv = with_home(argv)
    try:
        positional = _parse(flags.FLAGS, argv)
    except _MISTAKES as error:
        print(f"error: {_reason(error)}\nPass --help for the flags.", file=sys.stderr)
        sys.exit(1)
    config = flags.FLAGS["config"].value if "config" in flags.FLAGS else None
    if config is not None:
        for warning in configs.unused_settings(config, [key for key, _ in settings_of(argv)]):
            print(f"warning: --{warning}", file=sys.stderr)
    return positional


def read_config(arguments: Sequence[str]) -> ml_collections.ConfigDict:
    """Returns the config of a command line, checked as `programs/train.py` would check it.

    Args:
        arguments: Flags of the config only, such as "--config=FILE.py:CHOICE" and
            "--config.rounds=3".

    Raises:
        ConfigError: The config is wrong, as far as this can be checked without data.
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
    """Checks the flags of no config first, because a config file would load TensorFlow."""
    others = copy.deepcopy(values)
    delattr(others, "config")
    flags.DEFINE_string("config", None, "", flag_values=others)
    others(without_settings(argv))


def _reason(error: Exception) -> str:
    """Returns the relevant part of the message of an `ml_collections` or `absl` error."""
    reason = error
    if isinstance(error, OSError):
        return str(error)
    while isinstance(reason, Exception):  # some errors wrap others
        reason = reason.args[0] if reason.args else type(reason).__name__
    reason = str(reason).strip()
    if isinstance(error, AttributeError | KeyError):  # "Did you mean" is in a second line
        return f"Unknown config key {'. '.join(reason.splitlines())}"
    if "Traceback" in reason:
        # The error of a config file has a traceback, whose last line is the message.
        return reason.splitlines()[-1].partition(": ")[2]
    if match := re.match(r"Could not parse '([^']*)'", reason):
        words = [word for word in match[1].split(".") if keyword.iskeyword(word)]
        right = ".".join(f"{word}_" if word in words else word for word in match[1].split("."))
        tip = f", since {words[0]!r} is a word of Python. Did you mean {right!r}?" if words else "."
        return f"{match[1]!r} is no config key{tip}"
    # The message of a validator of several flags starts with all their values.
    return re.sub(r"^flags \w+=.*?: ", "", reason)


def without_settings(argv: Sequence[str]) -> list[str]:
    """Returns a command line without the flags for config keys."""
    return [argument for argument in argv if not re.match(r"--?(no)?config\.", argument)]


def settings_of(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the key and the value of each flag for a config key, such as `--config.rounds=3`."""
    pattern = re.compile(r"--?(no)?config\.([^=]+)(?:=(.*))?", re.DOTALL)
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := pattern.fullmatch(argument):
            negated, key, value = match.groups()
            yield key, "False" if negated else following if value is None else value

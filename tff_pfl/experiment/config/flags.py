"""Flags of programs, those of single keys of a config included."""

import copy
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import ml_collections
from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from tff_pfl.experiment import config as configs
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.imports import failure, import_modules, look_in
from tff_pfl.experiment.config.keys import OWN_NUMBERS, own_keys
from tff_pfl.experiment.run_directory import flatten
from tff_pfl.names import is_near, unknown_name
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


class ConfigFileParser(flags.ArgumentParser):
    """Parses `--config=FILE.py:CHOICE`, with all options of what the file and other flags choose.

    With `--config.model.name=NAME`, the options that the file has for another model give way to
    the defaults of this one; and so for all else that is chosen by name. Modules that
    `--config.imports` names are imported before the file is loaded.
    """

    def __init__(self, parser: flags.ArgumentParser, argv: Sequence[str]):
        """Prepares the parser.

        Args:
            parser: That of `ml_collections`, which loads the file.
            argv: The command line.
        """
        self._parser = parser
        self._overrides = dict(_overrides(argv))

    def parse(self, path: str) -> ml_collections.ConfigDict:
        """The config of a file.

        Raises:
            ValueError: What the file itself raises for a wrong choice; for an unknown name, an
                option of another type, or a module that cannot be imported; or if the file fails.
        """
        file = path.partition(":")[0]
        folder = os.path.dirname(os.path.abspath(file))
        look_in([folder])
        is_there = os.path.exists(file)  # if not, that is all there is to say, when it is used
        if is_there:
            announce_tensorflow()
        imports, folders = (
            tuple_parser.TupleParser().parse(self._overrides.get(key, ()))
            for key in ("imports", "import_path")
        )
        import_modules(imports, folders)
        try:
            config = self._parser.parse(path)
        except (TypeError, ValueError) as error:
            raise error.__context__ or error from None  # the file's own, without its traceback
        except OSError:
            raise
        except Exception as error:  # whatever a user's code raises, below this function
            error.__traceback__ = error.__traceback__.tb_next
            raise ValueError(failure("the file", error)) from None
        if not is_there:
            return config
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

    def flag_type(self):
        return self._parser.flag_type()


class _NumberOrNone(flags.ArgumentParser):
    """Parses a number, or `None`; where that is no value, `check_config` says so."""

    def __init__(self, number: flags.ArgumentParser):
        self._number = number
        self.syntactic_help = f"{number.syntactic_help}, or None"

    def parse(self, argument):
        return None if argument == "None" else self._number.parse(argument)

    def flag_type(self):
        return self._number.flag_type()


def parse_flags(argv: Sequence[str], *, has_own_keys_alone: bool = False) -> list[str]:
    """Parses flags for `absl.app.run`; a mistake is answered with one message, not a traceback.

    Flags of a config for numbers take `None` as well; see also `ConfigFileParser`. Other flags are
    looked at first: a mistake in them is answered before a config file imports TensorFlow. A flag
    that would have no effect is a mistake, see `without_effect`.

    Args:
        argv: The command line.
        has_own_keys_alone: Whether configs have the keys of `default_config` and no others. Then
            mistakes in most of these keys are answered before TensorFlow is imported, too.
    """
    if "config" in flags.FLAGS:
        flag = flags.FLAGS["config"]
        flag.parser = ConfigFileParser(flag.parser, argv)
    _take_none_for_numbers()
    try:
        _check_other_flags(argv)
        if has_own_keys_alone:
            _check_own_keys(argv)
    except _MISTAKES as error:
        _refuse(_reason(error))
    try:
        positional = flags.FLAGS(argv)
        for value in flags.FLAGS.flag_values_dict().values():
            hasattr(value, "items")  # a config file that is missing raises when it is used
    except _MISTAKES as error:
        _refuse(_unknown_key(argv) or _reason(error))
    is_config = "config" in flags.FLAGS and isinstance(
        flags.FLAGS.config, ml_collections.ConfigDict
    )
    if is_config and (idle := _without_effect(flags.FLAGS.config, argv)):
        _refuse(idle)
    return positional


def read_config(arguments: Sequence[str]) -> ml_collections.ConfigDict:
    """The config of a command line, checked as by the program that would be given it.

    Args:
        arguments: Flags of the config alone, as "--config=FILE.py:CHOICE", "--config.rounds=3".

    Raises:
        ConfigError: If the program would refuse it; as far as no data are needed to know.
    """
    argv = ["", *arguments]
    _take_none_for_numbers()
    holder, loaded = _apart(argv, argv)
    try:
        holder(argv)
        config = loaded.value
    except _MISTAKES as error:
        raise ConfigError(_unknown_key(argv) or _reason(error)) from error
    if idle := _without_effect(config, argv):
        raise ConfigError(idle)
    configs.check_config(config)
    return config


def _take_none_for_numbers() -> None:
    config_flags.register_flag_parser_for_type(int, _NumberOrNone(flags.IntegerParser()))
    config_flags.register_flag_parser_for_type(float, _NumberOrNone(flags.FloatParser()))


def _without_effect(config: ml_collections.ConfigDict, argv: Sequence[str]) -> str | None:
    """The message for the first flag of a config that has no effect, if there is one."""
    idle = configs.without_effect(config, [key for key, _ in _overrides(argv)])
    if idle is None:
        return None
    return (
        f"--config.{idle.key} has no effect: config.{idle.switch} is {idle.value!r}. {idle.remedy}."
    )


def _refuse(reason: str) -> NoReturn:
    print(f"error: {reason}\nPass --help for the flags.", file=sys.stderr)
    sys.exit(1)


def _check_other_flags(argv: Sequence[str]) -> None:
    """Parses a command line without its config, into a copy of the flags.

    Keys of a config that are written without "=" leave all to be parsed with the config: whether
    the next argument is their value depends on their type.

    Raises:
        flags.Error: If there is no such flag, or its value is wrong.
    """
    argv = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
    keys = [argument for argument in argv if re.match(r"--?(no)?config\.", argument)]
    if "config" not in flags.FLAGS or not all("=" in key for key in keys):
        return
    others = copy.deepcopy(flags.FLAGS)
    del others.config
    flags.DEFINE_string("config", None, "Parsed later.", flag_values=others)
    others([argument for argument in argv if argument not in keys])


def _check_own_keys(argv: Sequence[str]) -> None:
    """Checks the flags of keys that all configs have, without the config file.

    Raises:
        ConfigError: If there is no such key, and one that must have been meant; or a number is out
            of range.
        ValueError: If a value is of another type.
    """
    config = own_keys()
    flags_with_values = [argument for argument in argv if "=" in argument]
    given = {
        key: f"--config.{key}={value}"
        for key, value in _overrides(flags_with_values)
        if _is_own(config, key.split("."))
    }
    holder, arguments = flags.FlagValues(), ["", *given.values()]
    config_flags.DEFINE_config_dict("config", config, flag_values=holder, sys_argv=arguments)
    holder(arguments)
    for key in filter(given.__contains__, OWN_NUMBERS):
        value = operator.attrgetter(key)(config)
        if value is not None:
            OWN_NUMBERS[key].check(f"config.{key}", value, ConfigError)


def _is_own(config: ml_collections.ConfigDict, keys: Sequence[str]) -> bool:
    """Whether a key is one of `own_keys`, and no option of something that is chosen.

    Raises:
        ConfigError: If it is neither, and one of these must have been meant.
    """
    section, known = _inside(config, keys)
    if known == len(keys):
        return not isinstance(section, ml_collections.ConfigDict)
    takes_options = not section or (keys[0] == "data" and known + 1 < len(keys))
    if not isinstance(section, ml_collections.ConfigDict) or takes_options:
        return False
    missing = keys[: known + 1]
    if _elsewhere(config, missing) or is_near(missing[-1], section):
        raise ConfigError(_no_such_key(config, missing, section))
    return False


def _unknown_key(argv: Sequence[str]) -> str | None:
    """The message for the first key that the config file does not have, if there is one."""
    holder, loaded = _apart(argv, [])
    try:
        others = holder(argv, known_only=True)
        config = loaded.value
    except Exception:  # of a config file that is not there, or fails
        return None
    for flag in others:
        name, *keys = flag.partition("=")[0].lstrip("-").split(".")
        if name not in ("config", "noconfig"):
            continue
        section, known = _inside(config, keys)
        if known < len(keys) and isinstance(section, ml_collections.ConfigDict):
            return _no_such_key(config, keys[: known + 1], section)
    return None


def _inside(config, keys) -> tuple[Any, int]:
    """What the first of some nested keys lead to in a config, and how many of them there are."""
    section = config
    for known, key in enumerate(keys):
        if not isinstance(section, ml_collections.ConfigDict) or key not in section:
            return section, known
        section = section[key]
    return section, len(keys)


def _apart(argv: Sequence[str], keys: Sequence[str]):
    """`--config` by itself, beside the flags of the program, and what holds its value.

    Args:
        argv: The command line, by which the file is loaded.
        keys: Those of its arguments that set single keys, which are flags then; of others nothing
            is known.
    """
    holder = flags.FlagValues()
    loaded = config_flags.DEFINE_config_file("config", flag_values=holder, sys_argv=keys)
    holder["config"].parser = ConfigFileParser(holder["config"].parser, argv)
    return holder, loaded


def _no_such_key(config, keys, section) -> str:
    """The message for a key that its section does not have; where there is such a one, if it is."""
    if other := _elsewhere(config, keys):
        return f"Unknown config key {'.'.join(keys)!r}. There is config.{other}."
    return unknown_name("config key", keys[-1], section)


def _elsewhere(config, keys) -> str | None:
    """Where the last of some nested keys is in a config, in the place nearest to them."""
    path = ".".join(keys)
    named = [x for x in flatten(config.to_dict(), ".") if x.rpartition(".")[2] == keys[-1]]

    def shared(other):
        return len(os.path.commonprefix([other, path]))

    return max(named, key=shared, default=None)


def _reason(error: Exception) -> str:
    """What a user needs to know of an error of `ml_collections` or `absl`."""
    reason = error
    while isinstance(reason, Exception):  # some are wrapped in one another
        reason = reason.args[0] if reason.args else type(reason).__name__
    reason = str(reason).strip()
    if "Traceback" in reason:
        # A config file that fails comes with a traceback, whose last line says why.
        return reason.splitlines()[-1].partition(": ")[2]
    # What a validator says of several flags begins with the values of all.
    return re.sub(r"^flags \w+=.*?: ", "", reason)


def _overrides(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`(key, value)` of the flags of single keys."""
    pattern = re.compile(r"--?config\.([^=]+)(?:=(.*))?", re.DOTALL)
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := pattern.fullmatch(argument):
            key, value = match.groups()
            yield key, following if value is None else value

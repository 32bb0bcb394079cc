"""The error of a config that is wrong."""

import contextlib
from collections.abc import Iterator

from tff_pfl.templates.errors import TemplateError


class ConfigError(ValueError):
    """A config that does not describe a run; the message names the key and what would be right."""


class ImportsError(ConfigError):
    """A module that a config names cannot be imported."""


@contextlib.contextmanager
def values_of(section: str) -> Iterator[None]:
    """What is refused in here is a value of `config.<section>`.

    Raises:
        ConfigError: With the section before the message of what was raised.
    """
    try:
        yield
    except (ValueError, TemplateError) as error:
        raise ConfigError(f"config.{section}: {error}") from error

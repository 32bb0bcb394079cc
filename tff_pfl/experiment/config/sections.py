"""Which section of a config a refused value is in."""

import contextlib
from collections.abc import Iterator

from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.kinds import KindError
from tff_pfl.templates.errors import TemplateError


@contextlib.contextmanager
def values_of(section: str | None) -> Iterator[None]:
    """What is refused in here is a value of `config.<section>`; `None`: of any.

    Raises:
        ConfigError: With the section before the message of what was raised.
    """
    try:
        yield
    except (ValueError, TemplateError, KindError) as error:
        where = "" if section is None else f"config.{section}: "
        raise ConfigError(f"{where}{error}") from error

"""The errors of a config that is wrong."""

import contextlib
from collections.abc import Iterator


class ConfigError(ValueError):
    """A config that does not describe a run; the message names the key and what would be right."""


@contextlib.contextmanager
def values_of(section: str | None) -> Iterator[None]:
    """Names the section of a config whose values are refused in its body.

    Args:
        section: Such as "local"; `None`: any.

    Raises:
        ConfigError: With the section before the message of what was raised.
    """
    # Not before TensorFlow is needed: programs define their flags without it.
    from tff_pfl.kinds import KindError
    from tff_pfl.templates.errors import TemplateError

    try:
        yield
    except ConfigError:  # which names its key
        raise
    except (ValueError, TemplateError, KindError) as error:
        where = "" if section is None else f"config.{section}: "
        raise ConfigError(f"{where}{error}") from error

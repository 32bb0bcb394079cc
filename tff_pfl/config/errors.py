"""Defines the error of a wrong config, and names its keys in other errors."""

import contextlib
from collections.abc import Iterator


class ConfigError(ValueError):
    """An error about a config; the message has the key and the right values."""


@contextlib.contextmanager
def config_errors(section: str | None) -> Iterator[None]:
    """Converts errors of its body about values of a config to a `ConfigError`.

    Args:
        section: The section or key of the values, such as "local"; `None`: the field of an
            `Experiment` that the error names, or any.

    Raises:
        ConfigError: The body raised an error. The message is `config.SECTION: ` and its message.
    """
    # Imported here, because programs define their flags without TensorFlow.
    from tff_pfl.arguments.kinds import KindError
    from tff_pfl.tracing.errors import TemplateError

    try:
        yield
    except ConfigError:  # its message has the key
        raise
    except (ValueError, TemplateError, KindError) as error:
        section = section or getattr(error, "field", None)
        where = "" if section is None else f"config.{section}: "
        raise ConfigError(f"{where}{error}") from error

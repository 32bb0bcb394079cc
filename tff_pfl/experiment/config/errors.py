"""The errors of a config that is wrong."""


class ConfigError(ValueError):
    """A config that does not describe a run; the message names the key and what would be right."""


class ImportsError(ConfigError):
    """A module that a config names cannot be imported, or is not trusted."""

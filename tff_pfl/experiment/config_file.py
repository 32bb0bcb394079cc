"""Config files as the flags of a program load them."""

import re
from collections.abc import Sequence

import ml_collections
from absl import flags

from tff_pfl import models


class ConfigFileParser(flags.ArgumentParser):
    """Parses `--config=FILE.py:CHOICE`, with options of the model that the other flags name.

    With `--config.model.name=NAME`, the options that the file has for another model give way to
    the defaults of this one. All options of the model can be set by flags.
    """

    def __init__(self, parser: flags.ArgumentParser, argv: Sequence[str], name: str = "config"):
        """Prepares the parser.

        Args:
            parser: That of `ml_collections`, which loads the file.
            argv: The command line.
            name: Of the flag.
        """
        self._parser = parser
        self._overrides = dict(_overrides(argv, name))

    def parse(self, path: str) -> ml_collections.ConfigDict:
        """The config of a file.

        Raises:
            ValueError: What the file itself raises for a wrong choice, and for an unknown model.
        """
        try:
            config = self._parser.parse(path)
        except (TypeError, ValueError) as error:
            raise error.__context__ or error from None  # the file's own, without its traceback
        if isinstance(config, ml_collections.ConfigDict) and "model" in config:
            name = self._overrides.get("model.name", config.model.name)
            with config.unlocked():
                if name != config.model.name:
                    config.model = {"name": name, "options": {}}
                if any(key.startswith("model.options.") for key in self._overrides):
                    own = config.model.options.to_dict()
                    config.model.options = models.options(name) | own
        return config

    def flag_type(self):
        return self._parser.flag_type()


def _overrides(argv, name):
    """`(key, value)` of the flags of single keys."""
    pattern = re.compile(rf"--?{name}\.([^=]+)(?:=(.*))?", re.DOTALL)
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := pattern.fullmatch(argument):
            key, value = match.groups()
            yield key, following if value is None else value

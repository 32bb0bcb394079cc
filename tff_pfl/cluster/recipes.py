"""Recipes by which other processes make an experiment."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_collections

from tff_pfl import config as configs
from tff_pfl import experiment
from tff_pfl.config.imports import folders_of

if TYPE_CHECKING:  # It would import TensorFlow, which a study's file does not need.
    from tff_pfl.experiment import Experiment


class Recipe(NamedTuple):
    """All that a process needs to train a run.

    Attributes:
        settings: The keys of its config, as JSON values.
        code: Digests of the user's modules that the config imports; see `versions.code_of`.
        tracker: The name of a tracker that receives its metrics, too.
        title: The title of an experiment that was made in Python; see `train_experiment`.
    """

    settings: Mapping[str, Any]
    code: Mapping[str, str] = {}
    tracker: str | None = None
    title: str = ""

    @classmethod
    def of_flags(cls, flags: Sequence[str]) -> "Recipe":
        """Returns the recipe of the run that `programs/train.py` would train with some flags.

        Raises:
            ConfigError: A flag or the config is wrong.
        """
        return cls.of(experiment.resolved(configs.read_config(flags)))

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], tracker: str | None = None, title: str = ""
    ) -> "Recipe":
        """Returns a recipe with the folders and digests of the modules, which are imported."""
        # Imported here, because it imports TensorFlow, which a study's file does not need.
        from tff_pfl.experiment.versions import code_of

        imports = settings["imports"]
        folders = settings["import_path"] or folders_of(imports)
        return cls({**settings, "import_path": folders}, code_of(imports), tracker, title)

    def config(self) -> ml_collections.ConfigDict:
        """Returns the config.

        Raises:
            ConfigError: The config is not one of this version, or a module that it imports is
                missing or differs from that of the process that wrote the recipe.
        """
        from tff_pfl.experiment.versions import code_of

        config = configs.config_of_run(self.settings, trust_imports=True)
        found = code_of(config.imports)
        if others := [name for name in self.code if found.get(name) != self.code[name]]:
            raise configs.ConfigError(
                f"The {others[0]} of this worker differs from that of the program that started "
                "the training. Copy it to this machine."
            )
        return config

    def experiment(self) -> "Experiment":
        """Returns the experiment of settings with fingerprints, which has the same data.

        Raises:
            ConfigError: See `config`; or the data differ from those of the process that wrote the
                recipe.
        """
        made = configs.experiment_of(self.config())
        data, wanted = made.members, self.settings["fingerprints"]
        if (data.fingerprint, data.inputs_fingerprint) != (wanted["data"], wanted["inputs"]):
            raise configs.ConfigError(
                f"The data set {data.name!r} of this worker differs from that of the program that "
                "started the training. Copy it to this machine."
            )
        return made

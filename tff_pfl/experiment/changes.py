"""Says which settings a resumed run may change."""

import functools

from tff_pfl.arguments.settings import NOTHING, NUMBERS, facts
from tff_pfl.evaluation.options import Evaluation
from tff_pfl.experiment.new_clients import NewClients


@functools.cache
def free_settings() -> dict[str, str]:
    """Returns what settings change that do not change the numbers of a run's rounds, by keys."""
    from tff_pfl.experiment.experiment import Experiment  # it imports this package's files

    kinds = {"": Experiment, "evaluation.": Evaluation, "new_clients.": NewClients}
    return {
        **dict.fromkeys(("data.data_dir", "import_path"), NOTHING),  # of configs alone
        **{
            section + name: found.changes
            for section, kind in kinds.items()
            for name, (_, found) in facts(kind).items()
            if found.changes != NUMBERS
        },
    }


def changes_of(key: str) -> str:
    """Returns what a setting changes, by its key in a config or in one of its lists."""
    found = (what for free, what in free_settings().items() if f"{key}.".startswith(f"{free}."))
    return next(found, NUMBERS)

"""Says which settings a resumed run may change."""

from tff_pfl.arguments.settings import NOTHING, NUMBERS, RESULTS, facts
from tff_pfl.evaluation.options import Evaluation
from tff_pfl.experiment.new_clients import NewClients

CHANGES = {
    "rounds": RESULTS,
    **dict.fromkeys(("checkpoint_every", "data.data_dir", "import_path"), NOTHING),
    **{
        f"{section}.{name}": found.changes
        for section, kind in (("evaluation", Evaluation), ("new_clients", NewClients))
        for name, (_, found) in facts(kind).items()
        if found.changes != NUMBERS
    },
}
"""Settings that do not change the numbers of a run's rounds, and what they change, by keys."""


def changes_of(key: str) -> str:
    """Returns what a setting changes, by its key in a config or in one of its lists."""
    found = (what for free, what in CHANGES.items() if f"{key}.".startswith(f"{free}."))
    return next(found, NUMBERS)

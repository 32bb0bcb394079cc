"""Whether settings were chosen with examples that the runs of the table are tested on."""

import pathlib
from collections.abc import Mapping

import numpy as np

from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.studies.study import Study


def shares_chosen_with(
    study: Study, output_dir: pathlib.Path, chosen: Mapping[str, str]
) -> dict[int, float]:
    """The share of a seed's test examples that the tuning has trained or compared with, by seeds.

    Args:
        study: With tuning.
        output_dir: Of the study.
        chosen: The trials of its variants, by labels.

    Returns:
        Of the first variant that shares any, as far as partitions are there; without the seeds
        that share none.
    """

    def partition(run):
        return RunFiles(output_dir / run.folder).partition()

    for label, trial in chosen.items():
        runs = [run for run in study.runs({label: trial}) if _has_partition(output_dir, run)]
        trials = study.tuning_runs(label, trial, None)
        tuned = [partition(run) for run in trials if _has_partition(output_dir, run)]
        if runs and tuned:
            rows = np.concatenate([rows for p in tuned for rows in (*p.train, *p.validation)])
            shares = {
                run.seed: float(np.isin(np.concatenate(partition(run).test), rows).mean())
                for run in runs
            }
            if any(shares.values()):
                return {seed: share for seed, share in shares.items() if share > 0}
    return {}


def note(shares: Mapping[int, float]) -> str:
    """What a reader of the table is to know of them."""
    of_seeds = ", ".join(f"{share:.0%} of seed {seed}" for seed, share in shares.items())
    return (
        f"note: of the test examples, {of_seeds} are among those that settings were chosen with, "
        "as each seed divides all examples anew. config.data.merge=False, or one "
        "config.data.partition_file, has the same test examples for all seeds."
    )


def _has_partition(output_dir, run) -> bool:
    return (output_dir / run.folder / "partition.npz").exists()

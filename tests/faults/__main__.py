"""Kills, starves and damages training runs, and reports the outcomes.

    python -m tests.faults [--parts=kills,signals,...] [--kills=50] [--seed=0]

Every fault must end in the results of an undisturbed run, bit for bit, or in one message that names
the file. A table of outcomes is printed; the exit code is 1 if a fault ended in another way. A
process's limit on file sizes stands in for a full disk, so that any user can run this. A real full
disk differs only in the error number.
"""

import pathlib
import shutil
import sys
import tempfile

from absl import app, flags

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tests.faults.faults import Faults  # noqa: E402

_COUNTS = {
    "full_disks": flags.DEFINE_integer("full_disks", 20, "The number of full disks."),
    "signals": flags.DEFINE_integer("signals", 10, "The number of SIGTERMs and Ctrl-Cs."),
    "kills": flags.DEFINE_integer("kills", 50, "The number of SIGKILLs."),
    "studies": flags.DEFINE_integer("studies", 4, "The number of kills of studies."),
    "damages": flags.DEFINE_integer("damages", 1, "The number of damages per kind and file."),
}
_PARTS = flags.DEFINE_list("parts", list(_COUNTS), "The faults to try.")
_SEED = flags.DEFINE_integer("seed", 0, "The seed of all random choices.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tff_pfl_faults_"))
    faults = Faults(folder, _SEED.value)
    for part in _PARTS.value:
        print(f"{part}: {_COUNTS[part].value}", file=sys.stderr, flush=True)
        getattr(faults, part)(_COUNTS[part].value)
    print(faults.tally.table())
    if faults.tally.wrong:
        print(f"The runs are in {folder}.")
        return 1
    shutil.rmtree(folder)
    return 0


@flags.validator("parts", f"Parts are {', '.join(_COUNTS)}.")
def _are_parts(parts):
    return all(part in _COUNTS for part in parts)


if __name__ == "__main__":
    app.run(main)

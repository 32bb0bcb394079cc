"""Trains and evaluates a personalized federation.

    train.py --config=configs/NAME.py[:ALGORITHM] [--config.KEY=VALUE ...] --output_dir=DIR

`docs/keys.md` explains all keys of a config. A flag sets a key, as in
`--config.rounds=50 --config.data.dirichlet.alpha=0.1`. DIR receives the metrics (`metrics.csv`,
`clients/`, `tensorboard/`), the partition and a picture of it, the resolved config, a checkpoint
and a summary. `--resume` continues a stopped run. `--runtime` and `--devices` choose the runtime
and the devices. The exit code is 0; 1 after an error; 75 if the runtime's process was lost, after
which the run can be resumed; 130 after Ctrl-C; and 143 after SIGTERM.
"""

from absl import app, flags
from ml_collections import config_flags

from tff_pfl import config as configs
from tff_pfl.runtime.flags import restart, set_context_from_flags
from tff_pfl.runtime.startup import prepare_process

prepare_process()

_CONFIG = config_flags.DEFINE_config_file("config", None, "The config file; see above.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The directory of the run's results.")
_RESUME = flags.DEFINE_bool("resume", False, "Continue the run in output_dir, or start a new one.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the run in output_dir first.")
_TRACKER = flags.DEFINE_string(
    "tracker",
    None,
    "A tracker that receives the metrics, too: wandb or mlflow, after pip install tff_pfl[wandb]. "
    "Its own environment variables choose the project, such as WANDB_PROJECT.",
)
_SCHEDULER = flags.DEFINE_string(
    "scheduler", "", "The address HOST:PORT of a Dask scheduler, whose workers train the clients."
)
_SCHEDULER_FILE = flags.DEFINE_string(
    "scheduler_file", "", "The file in which a Dask scheduler has written its address."
)
_PARTS = flags.DEFINE_integer(
    "parts", 16, "The number of parts of the federation on a cluster, a power of two."
)
_RESTARTS = flags.DEFINE_integer(
    "restarts",
    0,
    "How often the program restarts itself after the process of --runtime=cpp was lost. It "
    "continues from the last checkpoint.",
    lower_bound=0,
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    return configs.run_program(
        _CONFIG.value,
        _OUTPUT_DIR.value,
        resume=_RESUME.value,
        overwrite=_OVERWRITE.value,
        tracker=_TRACKER.value,
        set_context=set_context_from_flags,
        restart=_restart,
        scheduler=_SCHEDULER.value,
        scheduler_file=_SCHEDULER_FILE.value,
        parts=_PARTS.value,
    )


def _restart(resume):
    if _RESTARTS.value:
        flags_to_resume = ["--resume", "--nooverwrite"] if resume else []
        restart(*flags_to_resume, f"--restarts={_RESTARTS.value - 1}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "output_dir"])
    flags.mark_bool_flags_as_mutual_exclusive(["resume", "overwrite"])
    app.run(main, flags_parser=configs.parse_flags)

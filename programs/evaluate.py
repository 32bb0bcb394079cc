"""Evaluates the last checkpoint of a run, also on the examples of other clients.

    evaluate.py --run_dir=DIR --output=PREFIX [--synthetic=0.1,0.5] [--subsample] [--split=test]
        [--further_models=locally_trained,fine_tuned] [--fine_tune_epochs=5]
        [--fine_tune_learning_rate=0.01] [--nogeneralization] [--baseline=DIR] [--clients=1000]

Every client's own model and the global one are evaluated on the client's examples (`local_test`),
on those of all clients (`generalization_test`), and on the client's own together with those of a
fraction of the other clients, drawn once (`synthetic50_test`). With many clients the last two take
longer than all else; `--nogeneralization` leaves them out. `--clients=1000` evaluates so many
clients, drawn by the run's seed, with 95 % intervals of the means over all; 0 evaluates all.
Clients that the run held out fine-tune the global model, and are evaluated, too
(`new_clients_test`).

Further models of each client cost its training: the global model after it, as in a round
(`locally_trained`), and its own model, fine-tuned for --fine_tune_epochs (`fine_tuned`). Without
`fine_tuned` among them, --fine_tune_epochs is of `personalized`.

Statistics over all clients, over those that took part in a round, over those that never did and
over new ones are means, weighted by examples and not, deviations, deciles, and lowest and top 5 and
10 %. `--baseline=DIR`, of a run of local training on the same partition, adds what each client
gains over it, and the share of clients that are hurt.

PREFIX.json gets the result, PREFIX_table.csv all of these statistics with a row for each quantity
and group, PREFIX.csv a row for each client, PREFIX_new_clients.csv for each new one; a short table
is printed. Nothing in DIR is changed. Modules of the run's config are imported only with
`--trust_imports`, or if `--imports` names them.
"""

from absl import app, flags

from tff_pfl import experiment
from tff_pfl.runtime.flags import set_context_from_flags
from tff_pfl.runtime.startup import prepare_process

prepare_process()

_trusted_imports = experiment.define_import_flags()
_RUN_DIR = flags.DEFINE_string("run_dir", None, "The run's output directory.")
_OUTPUT = flags.DEFINE_string("output", None, "Prefix of the results.")
_SYNTHETIC = flags.DEFINE_list(
    "synthetic", ["0.5"], "Fractions of the other clients whose examples are added, in [0, 1]."
)
_SUBSAMPLE = flags.DEFINE_bool(
    "subsample", False, "Draw as many examples of each pool as the client itself has."
)
_GENERALIZATION = flags.DEFINE_bool(
    "generalization", True, "Evaluate on the examples of other clients, too."
)
_FURTHER_MODELS = flags.DEFINE_list(
    "further_models",
    None,
    "Of locally_trained and fine_tuned, see above; by default those of the run's config.",
)
_FINE_TUNE_EPOCHS = flags.DEFINE_integer(
    "fine_tune_epochs",
    None,
    "Passes over its training examples for each client's own model before it is evaluated, not "
    "those of the run's config.",
    lower_bound=0,
)
_FINE_TUNE_LEARNING_RATE = flags.DEFINE_float(
    "fine_tune_learning_rate",
    None,
    "The learning rate of that, and of new clients, not that of the run's config.",
    lower_bound=0,
)
_SAMPLE = flags.DEFINE_integer(
    "clients", None, "How many are evaluated, not those of the run's config; 0: all.", lower_bound=0
)
_BASELINE = flags.DEFINE_string(
    "baseline",
    None,
    "The output directory of a run on the same partition, such as one of `local`, over whose own "
    "models each client gains or loses.",
)
_SPLIT = flags.DEFINE_enum("split", "test", ["test", "validation"], "What is evaluated on.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    changes = {
        flag.name: flag.value
        for flag in (_SAMPLE, _FINE_TUNE_EPOCHS, _FINE_TUNE_LEARNING_RATE)
        if flag.value is not None
    }
    if _GENERALIZATION.value or _SYNTHETIC.present:
        changes["synthetic"] = tuple(map(float, _SYNTHETIC.value))
    if _FURTHER_MODELS.value is not None:
        changes["further_models"] = tuple(_FURTHER_MODELS.value)
    return experiment.evaluate_program(
        _RUN_DIR.value,
        _OUTPUT.value,
        baseline=_BASELINE.value,
        trust_imports=_trusted_imports(),
        set_context=set_context_from_flags,
        generalization="last" if _GENERALIZATION.value else "never",
        subsample=_SUBSAMPLE.value,
        split=_SPLIT.value,
        **changes,
    )


@flags.validator("synthetic", "Fractions are numbers in [0, 1].")
def _are_fractions(values):
    try:
        return all(0 <= float(value) <= 1 for value in values)
    except ValueError:
        return False


if __name__ == "__main__":
    flags.mark_flags_as_required(["run_dir", "output"])
    app.run(main, flags_parser=experiment.parse_flags)

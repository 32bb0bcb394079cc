"""Evaluates the last checkpoint of a run.

    evaluate.py --run_dir=DIR --output=PREFIX [--synthetic=0.1,0.5] [--subsample] [--split=test]
        [--further_models=locally_trained,fine_tuned] [--fine_tune_epochs=5]
        [--fine_tune_learning_rate=0.01] [--nogeneralization] [--baseline=DIR] [--clients=1000]
        [--predictions]

Every client's own model and the global model are evaluated on the client's examples (`local_test`),
on the examples of all clients (`generalization_test`), and on the client's examples together with
those of a fraction of the other clients, drawn once (`synthetic50_test`). `--nogeneralization`
leaves out the last two. Clients that the run held out fine-tune the global model
(`new_clients_test`). Further models of each client are the global model after local training
(`locally_trained`) and the client's own model after fine-tuning for --fine_tune_epochs
(`fine_tuned`). `--baseline=DIR`, a run on the same partition such as a run of local training, adds
each client's gain over the baseline, and the share of clients with a negative gain.

The result is written to PREFIX.json, all statistics to PREFIX_table.csv with a row for each
quantity and group of clients, a row for each client to PREFIX.csv, and a row for each new client to
PREFIX_new_clients.csv. A short table is printed. With `--predictions`,
PREFIX_predictions.parquet has a row for each example of each client: `client_id`, `example` (its
row in the data set), `label`, and for each model its outputs (`MODEL`) and its loss (`MODEL_loss`).

Nothing in DIR is changed. Modules of the run's config are imported only with `--trust_imports` or
if `--imports` names them.
"""

from absl import app, flags

from tff_pfl import config as configs
from tff_pfl.runtime.flags import set_context_from_flags
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()

_trusted_imports = configs.define_import_flags()
flags.DEFINE_string("run_dir", None, "The run's output directory.")
flags.DEFINE_string("output", None, "The prefix of the result files.")
flags.DEFINE_string("baseline", None, "The output directory of a run on the same partition.")
flags.DEFINE_bool("generalization", True, "Also evaluate on the examples of other clients.")
flags.DEFINE_enum("split", "test", ["test", "validation"], "The examples to evaluate on.")
flags.DEFINE_bool("subsample", False, "Draw only as many examples of each pool as the client has.")
flags.DEFINE_list("synthetic", ["0.5"], "Shares of the other clients to add, in [0, 1].")
flags.DEFINE_bool("predictions", False, "Also write each model's outputs on each example.")
# These default to the values of the run's config.
_CHANGES = (
    flags.DEFINE_list("further_models", None, "locally_trained, fine_tuned or both; see above."),
    flags.DEFINE_integer("fine_tune_epochs", None, "Fine-tuning epochs of each client."),
    flags.DEFINE_float("fine_tune_learning_rate", None, "Its learning rate, also for new clients."),
    flags.DEFINE_integer("clients", None, "Number of clients, drawn with the run's seed; 0: all."),
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    announce_tensorflow()
    given = flags.FLAGS
    changes = {flag.name: flag.value for flag in _CHANGES if flag.value is not None}
    if given.generalization or given["synthetic"].present:
        changes["synthetic"] = given.synthetic
    return configs.evaluate_program(
        given.run_dir,
        given.output,
        baseline=given.baseline,
        predictions=given.predictions,
        trust_imports=_trusted_imports(),
        set_context=set_context_from_flags,
        generalization="last" if given.generalization else "never",
        subsample=given.subsample,
        split=given.split,
        **changes,
    )


if __name__ == "__main__":
    flags.mark_flags_as_required(["run_dir", "output"])
    app.run(main, flags_parser=configs.parse_flags)

"""Writes the trained models of a run as SavedModels, which work without this library.

    export.py --run_dir=DIR --output=FOLDER [--clients=0,7] [--overwrite]

The models come from the run's last checkpoint. FOLDER/client_ID is the client's own model, which
the run evaluates as `personalized`, or as `fine_tuned` if the run held the client out.
FOLDER/global is the global model, if the algorithm has one.
Load a model with TensorFlow alone:

    model = tf.saved_model.load("FOLDER/client_7")
    logits = model(images)

Inputs have the data set's type, such as uint8 images, and a batch axis. `model.weights` are the
variables, by layers. FOLDER/models.json has the run and the round of the models, and the shape and
type of inputs. FOLDER must be new or empty, unless `--overwrite` deletes the models in it. Nothing
in DIR is changed. Modules of the run's config are imported only with `--trust_imports` or if
`--imports` names them.
"""

from absl import app, flags

from tff_pfl import config as configs
from tff_pfl.runtime.flags import set_context_from_flags
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()

_trusted_imports = configs.define_import_flags()
_RUN_DIR = flags.DEFINE_string("run_dir", None, "The run's output directory.")
_OUTPUT = flags.DEFINE_string("output", None, "The folder of the models.")
_CLIENTS = flags.DEFINE_list("clients", None, "Clients, by name or id; by default all that train.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the models in the folder first.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    announce_tensorflow()
    return configs.export_program(
        _RUN_DIR.value,
        _OUTPUT.value,
        clients=_CLIENTS.value,
        overwrite=_OVERWRITE.value,
        trust_imports=_trusted_imports(),
        set_context=set_context_from_flags,
    )


if __name__ == "__main__":
    flags.mark_flags_as_required(["run_dir", "output"])
    app.run(main, flags_parser=configs.parse_flags)

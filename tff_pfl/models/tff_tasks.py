"""The benchmark tasks of `tff.simulation.baselines`: their models, and their data as TFF has it."""

import functools
import inspect
from collections.abc import Callable

import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.models.model import Model
from tff_pfl.models.tff_learning import from_tff


def tff_task(
    name: str, *, data_dir: str | None = None, synthetic: bool = True, cnn: str = "cnn"
) -> tff.simulation.baselines.BaselineTask:
    """Makes a task of TFF, with batches of one example in stored order.

    Args:
        name: One of `tff_pfl.arguments.names.TFF_TASKS`.
        data_dir: The folder of TFF's data, to which missing data are downloaded. Default: TFF's.
        synthetic: Whether to take the small data that TFF ships for tests.
        cnn: TFF's name of the model of "emnist".
    """
    options = {"cache_dir": data_dir, "use_synthetic_data": synthetic}
    return _creators(cnn)[name](_spec(), **options)


def _spec():
    return tff.simulation.baselines.ClientSpec(1, batch_size=1, shuffle_buffer_size=1)


def _creators(cnn) -> dict[str, Callable]:
    tasks = tff.simulation.baselines
    return {
        "cifar100": tasks.cifar100.create_image_classification_task,
        "emnist": functools.partial(
            tasks.emnist.create_character_recognition_task, model_id=cnn, only_digits=False
        ),
        "autoencoder": tasks.emnist.create_autoencoder_task,
        "shakespeare": tasks.shakespeare.create_character_prediction_task,
        "tags": tasks.stackoverflow.create_tag_prediction_task,
        "words": tasks.stackoverflow.create_word_prediction_task,
    }


def cifar100(image_shape, num_classes) -> Model:
    """Builds TFF's ResNet-18 with group normalisation for 24x24 pixels of CIFAR-100."""
    del image_shape, num_classes
    return from_tff(tff_task("cifar100").model_fn)


def emnist(image_shape, num_classes, *, variant: str = "cnn") -> Model:
    """Builds one of TFF's models for the 62 characters of EMNIST: cnn, cnn_dropout or 2nn."""
    del image_shape, num_classes
    return from_tff(tff_task("emnist", cnn=variant).model_fn)


def autoencoder(image_shape, num_classes) -> Model:
    """Builds TFF's autoencoder of EMNIST, 784-1000-500-250-30-250-500-1000-784."""
    del image_shape, num_classes
    return from_tff(tff_task("autoencoder").model_fn)


def shakespeare(image_shape, num_classes) -> Model:
    """Builds TFF's model of Shakespeare's characters: an embedding, two LSTM layers, a head."""
    del image_shape, num_classes
    return from_tff(tff_task("shakespeare").model_fn)


def tags(image_shape, num_classes) -> Model:
    """Builds TFF's logistic regression from words of Stack Overflow to tags."""
    create = _from_datasets("create_tag_prediction_task")
    vocabularies = [_vocabulary(image_shape[0]), _vocabulary(num_classes)]
    return from_tff(create(_spec(), None, *vocabularies, *_posts()).model_fn)


@takes(vocabulary=whole(1))
def words(image_shape, num_classes, *, vocabulary: int = 10_000) -> Model:
    """Builds TFF's model of the next word of Stack Overflow: an embedding, an LSTM, two layers.

    Args:
        image_shape: `(length,)` of sequences.
        num_classes: Not used.
        vocabulary: The number of words, without the 4 further tokens.
    """
    del num_classes
    create = _from_datasets("create_word_prediction_task")
    task = create(_spec(), None, image_shape[0], _vocabulary(vocabulary), 1, *_posts())
    return from_tff(task.model_fn)


def _from_datasets(name) -> Callable:
    """Returns TFF's function that makes a task of Stack Overflow of given data."""
    create = getattr(tff.simulation.baselines.stackoverflow, name)
    return getattr(inspect.getmodule(create), f"{name}_from_datasets")


def _vocabulary(size) -> list[str]:
    return [str(i) for i in range(size)]


def _posts():
    return [tff.simulation.datasets.stackoverflow.get_synthetic()] * 3

"""Draws which layers of a network a method shares, and which are a client's own."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import compose, make, models, testing
from tff_pfl.local import examples_type

_LAYERS = ("lower_layer", "norm_layer", "upper_layer", "head_layer")
_WIDTH, _HEIGHT = 120, 44
_SHARED, _OWN, _NEITHER = "#3b6fb5", "#c8651b", "#9a9a9a"
_TEXT = 'text-anchor="middle" font-size="14" fill="white"'
_MEANING = "Blue layers are sent by clients, orange ones are kept in a client's state.\n"


def picture(name: str) -> str:
    """Returns a picture of a network of four layers under a method, as SVG in Markdown.

    It is drawn from the types of uploads and of the client's state; empty if neither has layers.

    Args:
        name: A key of `ALGORITHMS`.
    """
    sent, kept = _places(name)
    if not sent | kept:
        return ""
    boxes = [_box(number, layer, sent, kept) for number, layer in enumerate(_LAYERS)]
    width = len(_LAYERS) * (_WIDTH + 12)
    title = f"Sent: {_list(sent)}. Kept: {_list(kept)}."
    svg = f'<svg class="layers" role="img" width="{width}" height="{_HEIGHT}">'
    return f"{svg}<title>{title}</title>{''.join(boxes)}</svg>\n\n{_MEANING}"


def _title(layer) -> str:
    return layer.removesuffix("_layer")


def _list(layers) -> str:
    return ", ".join(_title(layer) for layer in _LAYERS if layer in layers) or "nothing"


def _box(number, layer, sent, kept) -> str:
    x = number * (_WIDTH + 12)
    colors = [_SHARED] * (layer in sent) + [_OWN] * (layer in kept) or [_NEITHER]
    part = _WIDTH / len(colors)
    parts = (
        f'<rect x="{x + place * part}" width="{part}" height="{_HEIGHT}" fill="{color}"/>'
        for place, color in enumerate(colors)
    )
    text = f'<text x="{x + _WIDTH / 2}" y="{_HEIGHT / 2 + 5}" {_TEXT}>{_title(layer)}</text>'
    return "".join(parts) + text


def _places(name) -> tuple[set[str], set[str]]:
    """Returns the layers in uploads, and those in the client's state."""

    def network():
        layers = [
            tf.keras.layers.LayerNormalization(name=layer)
            if layer.startswith("norm")
            else tf.keras.layers.Dense(4, name=layer)
            for layer in _LAYERS
        ]
        return tf.keras.Sequential([tf.keras.Input((8,)), *layers])

    federation = {"num_clients": 8, "clients_per_round": 3, "largest_cohort": 3}
    model = models.from_keras(network, input_shape=(8,))
    process = compose(
        make(name, model, testing.tiny_local(0.01), **federation),
        examples_type((8,), np.float32),
    )
    uploads = [it.block.work.type_signature.result.upload for it in process.exchanges]
    sent = set().union(*(_layers(upload, model.num_weights) for upload in uploads))
    return sent, _layers(process.client_state_type, model.num_weights)


def _layers(type_: tff.types.Type, num_weights: int) -> set[str]:
    """Returns the layers whose names a type has anywhere, or all if it has them as one vector."""
    if isinstance(type_, tff.TensorType):
        return set(_LAYERS) if list(type_.shape or []) == [num_weights] else set()
    found = set()
    for name, member in tff.structure.iter_elements(type_):
        found |= ({name} & set(_LAYERS)) | _layers(member, num_weights)
    return found

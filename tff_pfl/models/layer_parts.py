"""Splits a model's layers into shared and personal layers, and into groups."""

import collections
import dataclasses
from collections.abc import Iterable

import absl.logging
import tensorflow_federated as tff

from tff_pfl.models.derived import derived
from tff_pfl.models.model import Model, Weights
from tff_pfl.models.statistics import STATISTICS

_NORMALIZATION = {"gamma", "beta", *STATISTICS}


@dataclasses.dataclass(frozen=True)
class LayerParts:
    """The shared and the personal layers of a model, both in the model's order."""

    shared: tuple[str, ...]
    personal: tuple[str, ...]
    layers: tuple[str, ...]

    def split(self, weights: Weights) -> tuple[Weights, Weights]:
        """Splits `W` into `(shared part, personal part)`; a part may be empty."""
        return (
            collections.OrderedDict((name, weights[name]) for name in self.shared),
            collections.OrderedDict((name, weights[name]) for name in self.personal),
        )

    def merge(self, shared: Weights, personal: Weights) -> Weights:
        """Merges `(shared part, personal part)` into `W`, the inverse of `split`."""
        return collections.OrderedDict(
            (name, personal[name] if name in self.personal else shared[name])
            for name in self.layers
        )

    def shared_model(self, model: Model, personal: Weights) -> Model:
        """Returns the model as a function of the shared part, with a constant personal part."""
        return derived(
            model,
            lambda seed: self.split(model.init(seed))[0],
            lambda shared: self.merge(shared, personal),
        )

    def personal_model(self, model: Model, shared: Weights) -> Model:
        """Returns the model as a function of the personal part, with a constant shared part."""
        return derived(
            model,
            lambda seed: self.split(model.init(seed))[1],
            lambda personal: self.merge(shared, personal),
        )


def layer_parts(model: Model, *, personal: Iterable[str] | None = None) -> LayerParts:
    """Splits the layers of a model into shared and personal layers.

    Example:
        >>> model = testing.tiny_model()
        >>> model.layers
        ('dense1', 'head')
        >>> tff_pfl.layer_parts(model, personal="dense1").shared
        ('head',)

    Args:
        model: The model.
        personal: The names of the personal layers, or one name, or patterns such as `"*_up"`.
            Default: the last layer, the head.

    Raises:
        UnknownNameError: No layer of the model has this name. The message suggests a similar one.
    """
    layers = model.layers
    chosen = model.matching(layers[-1:] if personal is None else personal)
    return LayerParts(
        shared=tuple(name for name in layers if name not in chosen),
        personal=tuple(name for name in layers if name in chosen),
        layers=layers,
    )


def two_parts(model: Model, *, personal: Iterable[str] | None = None) -> LayerParts:
    """Returns the `layer_parts` for a method that needs both parts; warns if one is empty."""
    parts = layer_parts(model, personal=personal)
    if not (parts.shared and parts.personal):
        absl.logging.warning(
            "%s of the layers of model %r (%s) is personal, so that clients share %s. Name other "
            "layers, or add one to the model.",
            "None" if parts.shared else "Each",
            model.name,
            ", ".join(parts.layers),
            "all, as in fedavg" if parts.shared else "nothing, as in local",
        )
    return parts


def normalization_layers(model: Model) -> tuple[str, ...]:
    """Returns the layers that only have a scale `gamma`, a shift `beta` or moving statistics."""
    return tuple(
        name
        for name, layer in tff.structure.iter_elements(model.weights_type)
        if _NORMALIZATION.issuperset(tff.structure.name_list(layer))
    )


def layer_groups(model: Model, layers: Iterable[str] | None = None) -> tuple[int, ...]:
    """Returns the group of each layer, where a normalisation layer joins the layer before it.

    Args:
        model: The model.
        layers: The names of the layers to group, in the model's order. Default: all layers.

    Returns:
        The number of each layer's group, counted from 0.
    """
    joined = set(normalization_layers(model))
    groups: list[int] = []
    for name in model.layers if layers is None else layers:
        groups.append((groups[-1] + (name not in joined)) if groups else 0)
    return tuple(groups)

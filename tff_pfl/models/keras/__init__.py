"""Pure models and metrics made of Keras' models and metrics."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.models.keras.adapter import from_keras as from_keras
    from tff_pfl.models.keras.layers import COMPUTE_TYPES as COMPUTE_TYPES
    from tff_pfl.models.keras.metrics import keras_metrics as keras_metrics
    from tff_pfl.models.keras.weights import assign as assign
else:
    __getattr__, __dir__, __all__ = offer(__name__)

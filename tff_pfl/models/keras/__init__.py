"""Pure models and metrics made of Keras' models and metrics."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "adapter": ("from_keras",),
        "metrics": ("keras_metrics",),
        "layers": ("COMPUTE_TYPES",),
    },
)

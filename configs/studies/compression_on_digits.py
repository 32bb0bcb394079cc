"""Measures what compression costs, with and without error feedback: three methods on digits.

FedAvg, FedPer and PGFed; 20 clients, 10 of them in a round; 100 rounds; three seeds. PGFed uploads
two parts of equal size: the change of the model, which is compressed, and the gradient of the
client's risk, which is not. Learning rates are those of `configs/digits.py`; nothing is tuned.
"""

from tff_pfl.analysis import SEPARATOR
from tff_pfl.studies import Study, Variant

_METHODS = {"FedAvg": "fedavg", "FedPer": "fedper", "PGFed": "pgfed"}
_COMPRESSORS = {
    "16 bits": {"compression.name": "half"},
    "8 bits": {"compression.name": "quantized", "compression.bits": 8},
    "4 bits": {"compression.name": "quantized", "compression.bits": 4},
    "2 bits": {"compression.name": "quantized", "compression.bits": 2},
    "top 10 %": {"compression.name": "top_k", "compression.share": 0.1},
    "top 1 %": {"compression.name": "top_k", "compression.share": 0.01},
}


def _settings():
    """Yields the label and the settings of each row."""
    yield "32 bits", {}
    for label, settings in _COMPRESSORS.items():
        yield label, settings
        yield f"{label}, fed back", {**settings, "compression.error_feedback": True}


def get_study():
    """Returns a study with a variant for each method and compressor."""
    return Study(
        title="Compression on digits",
        variants={
            f"{method}{SEPARATOR}{label}": Variant(f"configs/digits.py:{name}", settings)
            for method, name in _METHODS.items()
            for label, settings in _settings()
        },
        seeds=(0, 1, 2),
        settings={"rounds": 100, "evaluation.every": 5},
    )

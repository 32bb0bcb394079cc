"""What compression costs: FedAvg, FedPer and PGFed on digits, with error feedback and without.

20 clients, of which 10 take part in a round, 100 rounds, three seeds. Of PGFed, the change of the
model is compressed; the gradient of the client's risk, as large, travels as it is. Rates are those
of `configs/digits.py`; nothing is tuned.
"""

from tff_pfl.analysis import SEPARATOR, Study, Variant

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
    """Those of each line, by its label."""
    yield "32 bits", {}
    for label, settings in _COMPRESSORS.items():
        yield label, settings
        yield f"{label}, fed back", {**settings, "compression.error_feedback": True}


def get_study():
    """A variant for each method and compressor."""
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

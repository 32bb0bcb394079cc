"""Labels that carry the weights of their examples."""

import collections
from collections.abc import Mapping
from typing import Any

LABEL, WEIGHT = "label", "sample_weight"


def with_weights(y: Any, weights: Any) -> Mapping[str, Any]:
    """Returns labels with a weight for each example, or as they are if `weights` is `None`."""
    if weights is None:
        return y
    return collections.OrderedDict([(LABEL, y), (WEIGHT, weights)])


def have_weights(y: Any) -> bool:
    """Returns whether labels are a result of `with_weights`."""
    return isinstance(y, Mapping) and set(y) == {LABEL, WEIGHT}


def labels_of(y: Any) -> Any:
    """Returns labels without the weights of their examples."""
    return y[LABEL] if have_weights(y) else y


def weights_of(y: Any) -> Any:
    """Returns the weights of `with_weights`, or `None`."""
    return y[WEIGHT] if have_weights(y) else None

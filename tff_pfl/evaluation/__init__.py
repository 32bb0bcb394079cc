"""Federated evaluation, with metrics whose names state the model and the data."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.evaluation.each_client import EvaluatedClient as EvaluatedClient
    from tff_pfl.evaluation.each_client import for_each_client as for_each_client
    from tff_pfl.evaluation.each_client import map_models as map_models
    from tff_pfl.evaluation.evaluator import Evaluator as Evaluator
    from tff_pfl.evaluation.evaluator import measured as measured
    from tff_pfl.evaluation.fine_tuning import fine_tuned as fine_tuned
    from tff_pfl.evaluation.fine_tuning import locally_trained as locally_trained
    from tff_pfl.evaluation.gain import Gain as Gain
    from tff_pfl.evaluation.gain import differences as differences
    from tff_pfl.evaluation.gain import gains as gains
    from tff_pfl.evaluation.gain import gains_of_clients as gains_of_clients
    from tff_pfl.evaluation.gain import without_rounding as without_rounding
    from tff_pfl.evaluation.metrics import MARGIN as MARGIN
    from tff_pfl.evaluation.metrics import STATISTICS as STATISTICS
    from tff_pfl.evaluation.metrics import ClientMetrics as ClientMetrics
    from tff_pfl.evaluation.metrics import MetricName as MetricName
    from tff_pfl.evaluation.metrics import from_text as from_text
    from tff_pfl.evaluation.metrics import main_metric as main_metric
    from tff_pfl.evaluation.metrics import to_text as to_text
    from tff_pfl.evaluation.new_clients import NewClientsEvaluation as NewClientsEvaluation
    from tff_pfl.evaluation.options import FURTHER_MODELS as FURTHER_MODELS
    from tff_pfl.evaluation.options import SPLITS as SPLITS
    from tff_pfl.evaluation.options import Evaluation as Evaluation
    from tff_pfl.evaluation.options import sampled_clients as sampled_clients
    from tff_pfl.evaluation.pooled import PooledEvaluation as PooledEvaluation
    from tff_pfl.evaluation.pooled import drawn_clients as drawn_clients
    from tff_pfl.evaluation.predictions import Prediction as Prediction
    from tff_pfl.evaluation.predictions import Predictions as Predictions
    from tff_pfl.evaluation.statistics import Distribution as Distribution
    from tff_pfl.evaluation.statistics import distributions as distributions
    from tff_pfl.evaluation.statistics import groups_of as groups_of
    from tff_pfl.evaluation.statistics import mean_margin as mean_margin
    from tff_pfl.evaluation.statistics import over_clients as over_clients
    from tff_pfl.evaluation.statistics import summarize as summarize
else:
    __getattr__, __dir__, __all__ = offer(__name__)

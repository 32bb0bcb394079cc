"""Puts a personalized process into production: TFF's forms, both sides, and its data."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.deployment.exchange_forms import ExchangeForms as ExchangeForms
    from tff_pfl.deployment.exchange_forms import FormError as FormError
    from tff_pfl.deployment.exchange_forms import forms as forms
    from tff_pfl.deployment.global_model import (
        compose_global_evaluation as compose_global_evaluation,
    )
    from tff_pfl.deployment.saved_process import export_client as export_client
    from tff_pfl.deployment.saved_process import export_server as export_server
    from tff_pfl.deployment.saved_process import named_tensors as named_tensors
    from tff_pfl.deployment.sequence_data import (
        compose_with_sequence_data as compose_with_sequence_data,
    )
    from tff_pfl.deployment.stateless_view import compose_stateless_view as compose_stateless_view
else:
    __getattr__, __dir__, __all__ = offer(__name__)

"""Lets drivers of `tff.simulation`, `tff.learning` and `tff.program` train a process."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.drivers.examples_source import ExamplesDataSource as ExamplesDataSource
    from tff_pfl.drivers.examples_source import ExamplesIterator as ExamplesIterator
    from tff_pfl.drivers.examples_source import IdentifiedClient as IdentifiedClient
    from tff_pfl.drivers.program_state import CheckedStateManager as CheckedStateManager
    from tff_pfl.drivers.simulated_experiment import Simulation as Simulation
    from tff_pfl.drivers.simulation import SimulationState as SimulationState
    from tff_pfl.drivers.simulation import simulation_evaluation as simulation_evaluation
    from tff_pfl.drivers.simulation import simulation_process as simulation_process
else:
    __getattr__, __dir__, __all__ = offer(__name__)

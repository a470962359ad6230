"""The random states of Python and numpy."""

from .host_states import HostRng, is_same_state, numpy_state, python_state, set_host_rng

__all__ = ["HostRng", "is_same_state", "numpy_state", "python_state", "set_host_rng"]

"""The random states of Python and numpy."""

from .generator_memory import read_memory_of
from .host_states import HostRng, is_same_state, numpy_state, python_state, set_host_rng
from .mersenne_twister import join_python, join_torch, split_python, split_torch

__all__ = [
    "HostRng",
    "is_same_state",
    "join_python",
    "join_torch",
    "numpy_state",
    "python_state",
    "read_memory_of",
    "set_host_rng",
    "split_python",
    "split_torch",
]

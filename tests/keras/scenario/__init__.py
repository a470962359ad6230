"""What the forked processes do: train a small model on real data with `model.fit`, die where they are told, report the bits.

A job of a laboratory names a function of this package (see tests/keras/lab.py). Everything is made anew in each process, as a
user's script does.
"""

from tests.keras.scenario.fits import left_by_an_exception, many_fits, resumed
from tests.keras.scenario.offline import from_weights, loads_model, without_the_script
from tests.keras.scenario.own_updates import noisy_optimizer, own_train_step, unused_optimizer
from tests.keras.scenario.refusals import changed_scripts, doubtful_datasets, refusals
from tests.keras.scenario.scripts import fit, mirrored, shared_callbacks, two_fits

__all__ = [
    "changed_scripts",
    "doubtful_datasets",
    "fit",
    "from_weights",
    "left_by_an_exception",
    "loads_model",
    "many_fits",
    "mirrored",
    "noisy_optimizer",
    "own_train_step",
    "refusals",
    "resumed",
    "shared_callbacks",
    "two_fits",
    "unused_optimizer",
    "without_the_script",
]

"""The order of one step's gradients in a record."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.types import ITEMSIZE, TensorSpec
from ..log.layout import Layout

SMALL_BYTES = 64 << 10  # a copy of fewer bytes costs less than a buffer of its own


class GradientLayout:
    """The layout of a set of gradients: small gradients come first and are copied into one buffer; large ones are not copied.

    Small gradients are ordered by the size of their elements, largest first, so that each is aligned.

    Args:
        specs: specifications of the gradients. An absent gradient has no bytes.

    Attributes:
        layout: the layout to which records refer.
        order: index of the gradient at each place of the layout.
        small: indices of the small gradients that have bytes, in the order of the layout.
        large: indices of the large gradients.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        sizes = [spec.nbytes for spec in specs]
        self.order = sorted(range(len(specs)), key=lambda i: (sizes[i] >= SMALL_BYTES, -ITEMSIZE[specs[i].dtype]))
        self.layout = Layout(specs[i] for i in self.order)
        self.small = [i for i in self.order if 0 < sizes[i] < SMALL_BYTES]
        self.large = [i for i in self.order if sizes[i] >= SMALL_BYTES]

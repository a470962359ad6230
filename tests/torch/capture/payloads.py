"""The contents of payloads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tranlogs.base.types import AnyArray, Array, SparseArray
from tranlogs.log.layout import Payload


def contents_of(payload: Payload) -> Iterator[tuple[str, AnyArray | None]]:
    """Yield the tensors of a payload by name, as copies; None stands for an absent one."""
    if payload.wait is not None:
        payload.wait()
    data = np.concatenate(payload.buffers) if payload.buffers else np.empty(0, np.uint8)
    at = 0
    for i, spec in enumerate(payload.layout.tensors):
        if i in payload.absent:
            yield spec.name, None
            continue
        form = payload.sparse.get(i)
        if form is None:
            array = Array(spec.dtype, spec.local_shape, data[at : at + spec.nbytes], spec.strides)
            if spec.piece is not None:
                array.piece, array.whole = spec.piece, spec.shape
            yield spec.name, array
            at += spec.nbytes
            continue
        first, second = payload.layout.sparse_sizes(i, form)
        indices = Array("int64", (form.dims, form.nnz), data[at : at + first])
        values = Array(spec.dtype, (form.nnz, *spec.shape[form.dims :]), data[at + first : at + first + second])
        yield spec.name, SparseArray(spec.shape, indices, values, form.is_coalesced)
        at += first + second
    assert at == data.nbytes, f"the buffers hold {data.nbytes} bytes, the layout wants {at}"
    if payload.release is not None:
        payload.release()

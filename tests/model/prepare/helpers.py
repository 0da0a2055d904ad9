"""What the tests of preparation share: run before, run after, compare."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from octavo.model.files import io
from octavo.model.graph.normalize import normalize
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import Session

Feeds = dict[str, np.ndarray]


def before_and_after(
    proto: onnx.ModelProto,
    change: Callable[[ir.Model], object],
    feeds: Feeds | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> ir.Model:
    """Apply a change to a model and check that it computes the same; the signature must stay."""
    plain = Session.open(proto.SerializeToString(), optimize=False)
    feeds = feeds if feeds is not None else sample_inputs(plain.inputs)
    want = plain.run(feeds)
    model = io.load(proto)
    normalize(model)
    change(model)
    session = Session.open(io.to_bytes(model), optimize=False)
    assert [(s.name, s.dtype) for s in session.inputs] == [(s.name, s.dtype) for s in plain.inputs]
    assert session.output_names == plain.output_names
    got = session.run(feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        if array.dtype.kind in "OSU":
            assert got[name].tolist() == array.tolist()
        else:
            np.testing.assert_allclose(
                got[name].astype(np.float64), array.astype(np.float64), rtol=rtol, atol=atol, err_msg=name
            )
    Session.open(io.to_bytes(model)).run(feeds)
    assert normalize(model) == []
    return model


def ops(model: ir.Model) -> list[str]:
    """The operators of the main graph, in order."""
    return [node.op_type for node in model.graph]

"""Trained parameters as entries of a plan, and in types that a style has kernels for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from octavo.core import affine
from octavo.core.plan import Fixed, Key
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model import query


def fixed(params: QParams) -> Fixed:
    """Parameters as they are; weights use all integers of their type, since their values are rounded already."""
    scale = tuple(float(s) for s in params.scale.reshape(-1))
    zero = tuple(int(z) for z in params.zero_point.reshape(-1).astype(np.int64))
    return Fixed(Scheme(params.qtype, params.granularity), scale, zero)


def one_kind(trained: Mapping[Key, QParams], model: ir.Model, style: Style) -> dict[Key, QParams]:
    """In the QOperator style one signedness for all activations of 8 bits: its operators take no others.

    The same steps are written in the other signedness by moving zero points by 128.
    """
    eight = {params.qtype for params in trained.values()} & {INT8, UINT8}
    if style is not Style.QOPERATOR or eight != {INT8, UINT8}:
        return dict(trained)
    constants = {v.name for node in query.nodes(model) for v in node.inputs if query.constant(v) is not None}
    signed = {params.qtype for key, params in trained.items() if key.tensor not in constants} & eight == {INT8}
    unsigned = any(p.qtype == UINT8 for key, p in trained.items() if key.tensor in constants)
    if signed and not unsigned:
        return dict(trained)
    return {
        key: affine.narrowed(params, UINT8) if params.qtype == INT8 and key.tensor not in constants else params
        for key, params in trained.items()
    }

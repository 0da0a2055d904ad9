"""The check of a result before it is handed over: the ONNX checker, a load by the runtime, one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from octavo.errors import DataError, ModelError, OutputError
from octavo.model.files import io
from octavo.model.runtime.pieces import can_be_cut, run_in_pieces
from octavo.model.runtime.samples import SIZES, is_open, make
from octavo.model.runtime.session import NO_SPINNING, Array, Feeds, Session
from octavo.model.runtime.session_inputs import check

FULL_CHECK = 2000  # nodes; more are checked without the runtime's optimizations
LARGE_MODEL_BYTES = (
    256 << 20
)  # bytes; a larger model is checked without a second copy of its weights in another layout


def verify(
    model: ir.Model | str | Path,
    *,
    feeds: Feeds | None = None,
    run: bool = True,
    custom_ops: Sequence[str | Path] = (),
    nodes: int | None = None,
    threads: int | None = None,
) -> None:
    """Check that a result is a valid model that the runtime loads, and runs on one sample.

    It is loaded as a user would load it; a large one without prepacking. A graph of very many nodes
    (``FULL_CHECK``) is loaded in pieces where it can be cut, and without the runtime's optimizations: both
    grow with the square of the nodes.
    """
    name = io.describe(model) if isinstance(model, ir.Model) else str(model)
    size = nodes if nodes is not None else len(model.graph) if isinstance(model, ir.Model) else 0
    large = _file_bytes(model) > LARGE_MODEL_BYTES if not isinstance(model, ir.Model) else False
    try:
        check(model)
        if size > FULL_CHECK and feeds is not None and _runs_in_pieces(model, feeds, custom_ops, threads):
            return
        session = Session.open(
            model,
            threads=threads,
            custom_ops=custom_ops,
            optimize=size <= FULL_CHECK,
            prepack=not large,
            config=NO_SPINNING,
            trusted=True,
        )
        if feeds is not None:
            session.run(feeds)
        elif run:
            _run_on_some_sample(session)
    except (ModelError, DataError) as error:
        raise OutputError(f"The check of {name} failed: {error}") from error


def _runs_in_pieces(
    model: ir.Model | str | Path, feeds: Feeds, custom_ops: Sequence[str | Path], threads: int | None
) -> bool:
    """Whether a file's graph runs piece by piece; if it does not, the whole of it tells why."""
    if isinstance(model, ir.Model) or _file_bytes(model) > LARGE_MODEL_BYTES:
        return False
    proto = onnx.load(str(model), load_external_data=False)

    def run(part: bytes, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        session = Session.open(
            part, threads=threads, custom_ops=custom_ops, optimize=False, config=NO_SPINNING
        )
        return session.run(inputs)

    try:
        return can_be_cut(proto) and run_in_pieces(proto, feeds, run).keys() == {
            one.name for one in proto.graph.output
        }
    except (ModelError, DataError, KeyError):
        return False


def _file_bytes(path: str | Path) -> int:
    return sum(f.stat().st_size for f in (Path(path), Path(f"{path}.data")) if f.is_file())


def _run_on_some_sample(session: Session) -> None:
    """Run on made-up inputs; an open size may have to be larger than the first guess."""
    sizes = (None, *SIZES) if any(is_open(spec) for spec in session.inputs) else (None,)
    first: ModelError | None = None
    for size in sizes:
        try:
            session.run(make(session.inputs, 0, {}, size))
        except ModelError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first

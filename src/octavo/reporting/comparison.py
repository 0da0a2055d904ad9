"""A comparison as tables: for a terminal, and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from octavo.reporting.text import clean, columns, many, markdown_table, some


class Errors(Protocol):
    """A distance."""

    @property
    def sqnr(self) -> float:
        """In dB."""
        ...

    @property
    def cosine(self) -> float:
        """Of the angle."""
        ...

    @property
    def max_error(self) -> float:
        """The largest difference."""
        ...


class Tensor(Protocol):
    """A tensor and its twin."""

    @property
    def name(self) -> str:
        """In the float model."""
        ...

    @property
    def op_type(self) -> str:
        """Of the operator that makes it."""
        ...

    @property
    def local(self) -> Errors | None:
        """The operator alone."""
        ...

    @property
    def accumulated(self) -> Errors | None:
        """The model up to here."""
        ...

    @property
    def clipped(self) -> float | None:
        """Share of values."""
        ...

    @property
    def rounding(self) -> float | None:
        """Share of the energy lost."""
        ...

    @property
    def used(self) -> float | None:
        """Share of the range."""
        ...


class Change(Protocol):
    """What to do."""

    @property
    def text(self) -> str:
        """In words."""
        ...


class Culprit(Protocol):
    """A tensor to blame."""

    @property
    def tensor(self) -> str:
        """Its name."""
        ...

    @property
    def kind(self) -> str:
        """Weight, activation or operator."""
        ...

    @property
    def node(self) -> str:
        """Where it shows."""
        ...

    @property
    def op_type(self) -> str:
        """Of that node."""
        ...

    @property
    def sqnr(self) -> float:
        """In dB, of that node alone."""
        ...

    @property
    def text(self) -> str:
        """Why."""
        ...

    @property
    def change(self) -> Change:
        """What to do."""
        ...


class Output(Protocol):
    """An output."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def errors(self) -> Errors | None:
        """Against float."""
        ...

    @property
    def execution(self) -> Errors | None:
        """Optimized against unoptimized."""
        ...


class Compared(Protocol):
    """The part of a comparison that tables are made of."""

    @property
    def float_model(self) -> str:
        """Its name."""
        ...

    @property
    def quantized(self) -> str:
        """Its name."""
        ...

    @property
    def samples(self) -> int:
        """How many were run."""
        ...

    @property
    def looked(self) -> int:
        """In how many of them inner tensors were compared."""
        ...

    @property
    def matched(self) -> int:
        """Operators."""
        ...

    @property
    def unmatched(self) -> Sequence[str]:
        """Operators without a counterpart."""
        ...

    @property
    def outputs(self) -> Sequence[Output]:
        """Of the model."""
        ...

    @property
    def tensors(self) -> Sequence[Tensor]:
        """In the order of the network."""
        ...

    @property
    def culprits(self) -> Sequence[Culprit]:
        """The worst first."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks."""
        ...


def decibels(value: float | None) -> str:
    """``23.4``, or a dash."""
    if value is None or math.isnan(value):
        return "–"
    return "exact" if value == math.inf else f"{value:.1f}"


def share(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "–" if value is None else f"{value:.2%}" if 0 < value < 0.1 else f"{value:.0%}"


_HEAD = ("local dB", "model dB", "cosine", "max error", "clipped", "rounding", "used", "op", "tensor")
_OUT = ("output", "SQNR dB", "cosine", "max error", "optimized vs not, dB")


def worst(tensors: Sequence[Tensor], top: int) -> list[Tensor]:
    """The tensors with the largest local error; those without one come last."""
    return sorted(tensors, key=lambda t: t.local.sqnr if t.local is not None else math.inf)[:top]


def _row(tensor: Tensor) -> list[str]:
    local, whole = tensor.local, tensor.accumulated
    shown = local or whole
    return [
        decibels(local.sqnr if local is not None else None),
        decibels(whole.sqnr if whole is not None else None),
        f"{shown.cosine:.4f}" if shown is not None else "–",
        f"{shown.max_error:.3g}" if shown is not None else "–",
        share(tensor.clipped),
        share(tensor.rounding),
        share(tensor.used),
        tensor.op_type,
        tensor.name,
    ]


def _outputs(found: Compared) -> list[list[str]]:
    return [
        [
            output.name,
            decibels(output.errors.sqnr if output.errors is not None else None),
            f"{output.errors.cosine:.5f}" if output.errors is not None else "–",
            f"{output.errors.max_error:.3g}" if output.errors is not None else "–",
            decibels(output.execution.sqnr if output.execution is not None else None),
        ]
        for output in found.outputs
    ]


def _title(found: Compared) -> str:
    where = f"{many(found.samples, 'sample')}, {found.looked} of them tensor by tensor"
    lost = (
        f"; {many(len(found.unmatched), 'operator')} not: {some(found.unmatched)}" if found.unmatched else ""
    )
    return f"{many(found.matched, 'operator')} matched{lost}; {where}"


def _culprit_lines(found: Compared, top: int) -> list[str]:
    lines: list[str] = []
    for i, culprit in enumerate(found.culprits[:top], 1):
        place = f"{culprit.op_type} {clean(culprit.node)}"
        lines.append(f"{i}. {clean(culprit.tensor)} ({culprit.kind}): {decibels(culprit.sqnr)} dB at {place}")
        lines.append(f"   why: {clean(culprit.text, 600)}")
        lines.append(f"   change: {clean(culprit.change.text, 600)}")
    return lines


def comparison_table(found: Compared, top: int = 10) -> str:
    """Outputs, culprits, and the tensors with the largest local error."""
    parts = [
        f"{clean(found.float_model)} and {clean(found.quantized)}: {_title(found)}",
        columns(_outputs(found), _OUT),
    ]
    if found.culprits:
        parts.append("Culprits, the worst first:\n" + "\n".join(_culprit_lines(found, top)))
    else:
        parts.append("No culprit: every operator by itself is close to float.")
    parts.append(
        "Largest local errors (an operator alone, fed with float inputs):\n"
        + columns([_row(tensor) for tensor in worst(found.tensors, top)], _HEAD)
    )
    parts += [f"note: {clean(note, 600)}" for note in found.notes]
    return "\n\n".join(parts)


def markdown(found: Compared, top: int = 20) -> str:
    """The same as a page in Markdown."""
    culprits = [
        [c.tensor, c.kind, f"{c.op_type} {c.node}", decibels(c.sqnr), c.text, c.change.text]
        for c in found.culprits[:top]
    ]
    head = ("tensor", "kind", "seen at", "local dB", "why", "change")
    parts = [
        f"# {clean(found.float_model)} and {clean(found.quantized)}",
        f"{_title(found)}.",
        markdown_table(_outputs(found), _OUT),
        "## Culprits",
        markdown_table(culprits, head) if culprits else "None: every operator by itself is close to float.",
        "## Largest local errors",
        markdown_table([_row(tensor) for tensor in worst(found.tensors, top)], _HEAD),
        *(f"- {clean(note, 600)}" for note in found.notes),
    ]
    return "\n\n".join(parts) + "\n"

"""The pages ``docs/ops.md`` and ``docs/targets.md``: the op table and the datasheets."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.recipe import Style
from octavo.ops.rule import Kind, OpRule
from octavo.reporting.op_tables import (
    KINDS,
    datasheet,
    documented,
    first_sentence,
    inputs_text,
    lowering_text,
    not_quantized,
    op_name,
    rank,
)
from octavo.reporting.text import markdown_table
from octavo.targets import Target

_OPS_INTRO = """\
# Operators

Generated from the op table (`src/octavo/ops/table.py`) and the targets by `make docs`; do not edit.

Every operator below can be quantized in QDQ format; where a column names an operator, that is what it becomes
in QOperator or Integer format. An operator that is not listed is kept in float, and the result says so.
Whether quantizing an operator *pays off* is decided by the target: [targets.md](targets.md) has a sheet for
each.
"""


def ops_page(rules: Iterable[OpRule]) -> str:
    """Return the page ``docs/ops.md``."""
    known = sorted(rules, key=rank)
    parts = [_OPS_INTRO.rstrip()]
    for kind in Kind:
        rows = [_row(rule) for rule in known if rule.kind is kind]
        if rows:
            parts.append(f"## {kind.value.capitalize()}")
            parts.append(KINDS[kind][0].upper() + KINDS[kind][1:] + ".")
            parts.append(
                markdown_table(rows, ["operator", "inputs", "QDQ", "QOperator", "Integer", "remarks"])
            )
    return "\n\n".join(parts) + "\n"


_TARGETS_INTRO = """\
# Targets

Generated from the datasheets (`src/octavo/targets/`) by `make docs`; do not edit.

A target says what a runtime on some hardware accepts, what it makes fast, and the recipe that follows:

```console
$ octavo targets
$ octavo targets tensorrt
$ octavo quantize model.onnx -o model.trt.onnx --data calib.npz --target tensorrt
$ octavo lint model.trt.onnx --target tensorrt
```

What a target does not accept is kept in float, and the plan says why. A request that contradicts the target,
such as uint8 activations for TensorRT, is an error that names the nearest choice.

`ort-cpu`, the default, is the sheet of the CPU that Octavo runs on: `ort-cpu-vnni`, `ort-cpu-avx2` or
`ort-cpu-arm64`. Where the CPU is not known, it is `ort-cpu-avx2`, which is right on both kinds of x86-64.
"""


def targets_page(targets: Iterable[Target]) -> str:
    """Return the page ``docs/targets.md``; ``ort-cpu`` is one of the others and depends on the machine."""
    sheets = [target for target in targets if target.name != "ort-cpu"]
    parts = [
        _TARGETS_INTRO.rstrip(),
        markdown_table([[t.name, t.summary] for t in sheets], ["target", "what it is"]),
    ]
    for target in sheets:
        parts += [f"## `{target.name}`", f"{target.summary}.", _target_markdown(target)]
        for head, lines in documented(target).items():
            parts.append(f"{head.capitalize()}:\n\n" + "\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _row(rule: OpRule) -> list[str]:
    remarks = [rule.note] if rule.note else []
    if rule.refuse is not None:
        remarks.append(f"exceptions: {first_sentence(rule.refuse)}")
    return [
        op_name(rule),
        inputs_text(rule),
        *(lowering_text(rule, style) for style in Style),
        "; ".join(remarks),
    ]


def _target_markdown(target: Target) -> str:
    rows = [[key, value] for key, value in datasheet(target).items()]
    for what, reasons in not_quantized(target).items():
        rows += [[what, f"{', '.join(ops)}: {reason}"] for reason, ops in reasons.items()]
    return markdown_table(rows, ["what", "value"])

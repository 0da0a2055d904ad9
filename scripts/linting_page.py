"""The page ``docs/lint.md``: what lint does, and its rules as a table."""

from __future__ import annotations

from octavo.linting import RULES
from octavo.reporting.text import markdown_table

_INTRO = """\
# Lint

Generated from the rules (`src/octavo/linting/rules/`) by `make docs`; do not edit.

`octavo lint` checks a quantized model, Octavo's own or another tool's, against the datasheet of a
[target](targets.md): what it rejects, computes wrongly, or runs slowly.

```console
$ octavo lint model.int8.onnx
$ octavo lint model.int8.onnx --target tensorrt
$ octavo lint model.int8.onnx --fix better.onnx
$ octavo lint model.int8.onnx --sarif
$ octavo lint model.int8.onnx --json
```

Each finding has a rule, a severity, a node, a consequence and a fix. An *error* is refused by the target or
gives wrong results, a *warning* is slow or less accurate than it could be, a *note* is superfluous. The
exit code is 1 where an error is left. SARIF 2.1.0 is what code scanning in continuous integration reads.

```python
import octavo

quantized = octavo.quantize("model.onnx", "calib.npz")
found = octavo.lint(quantized.model, target="ort-cpu")
for one in found.findings:
    print(one.rule, one.severity.value, one.node, one.consequence, one.fix)
```

## What `--fix` does

It mends what can be mended without changing results: int8 activations become uint8 (zero points move by
128), uint8 weights int8, the scale of a bias becomes that of the input times that of the weight (its
integers follow, to within half of a step), a missing zero point is written down, doubled conversions and
idle clamps go, weights are stored as integers, tables are looked up before they are dequantized, the opset
is raised to what the types need. The fixed model is checked by ONNX Runtime before it is written. What
would need calibration data or the float model (another axis, symmetric zero points, weights in 7 bits) is
left to `octavo quantize`.

## What the runtime makes of it

For targets that the installed ONNX Runtime can stand for, lint asks it for the graph that it will run, and
names operators that are left in float between conversions (OCT602). For others the datasheet alone decides.

## Saturation

Without VNNI, x86 multiplies uint8 by int8 in pairs and adds both products in 16 bits. OCT509 estimates from
the weights how many pairs large inputs would drive out of 16 bits; `benchmarks/saturation.py` counts it on
real activations. Weights in 7 bits, which `ort-cpu-avx2`, `web` and `portable` use, can't saturate: 255 ×
64 × 2 = 32640.

## Rules
"""


def page() -> str:
    """The whole page."""
    rows = [
        [rule.id, rule.severity.value, rule.title, (rule.check.__doc__ or "").strip().splitlines()[0]]
        for rule in sorted(RULES.values(), key=lambda one: one.id)
    ]
    return _INTRO + "\n" + markdown_table(rows, ["rule", "severity", "what it finds", "why"]) + "\n"

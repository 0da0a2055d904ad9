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
exit code is 1 if an error remains. On the screen, findings that say the same of several nodes are one;
`--json` lists each. SARIF 2.1.0 is the format of code scanning services.

```python
import octavo

quantized = octavo.quantize("model.onnx", "calib.npz")
found = octavo.lint(quantized.model, target="ort-cpu")
for one in found.findings:
    print(one.rule, one.severity.value, one.node, one.consequence, one.fix)
```

## What `--fix` does

It repairs what can be repaired without changing results: int8 activations become uint8 (zero points move by
128), and uint8 weights int8; the scale of a bias becomes that of the input times that of the weight (its
integers change accordingly, to within half a step); a missing zero point is added; duplicate conversions and
clamps without effect are removed; weights are stored as integers; tables are looked up before they are
dequantized; the opset is raised to what the types need. The fixed model is checked by ONNX Runtime before it
is written. Repairs that need calibration data or the float model (another axis, symmetric zero points,
weights in 7 bits) are left to `octavo quantize`.

## The graph that the runtime executes

For targets of the installed ONNX Runtime, lint inspects the graph that it executes, and names operators that
run in float between conversions (OCT602). For other targets only the datasheet decides.

## Saturation

Without VNNI, x86 multiplies uint8 by int8 in pairs and adds both products in 16 bits. OCT509 estimates from
the weights how many pairs would exceed 16 bits with large inputs; `benchmarks/saturation.py` counts them on
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

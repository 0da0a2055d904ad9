"""``octavo import-gguf``: the weights of a GGUF file in an exported graph."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict

from octavo.cli.console import Console
from octavo.cli.paths import check_outputs, default_output, model_outputs, shown
from octavo.cli.verb import Answer, Verb

_NAMED = 5  # tensors and nodes that are named where there are more


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help="the GGUF file")
    parser.add_argument(
        "--graph", metavar="MODEL", required=True, help="the same model in ONNX, exported in float"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where the model goes (default: FILE.gguf.onnx)"
    )
    parser.add_argument(
        "--accuracy-level",
        metavar="N",
        type=int,
        choices=range(5),
        default=4,
        help="of MatMulNBits: 4 rounds activations to 8 bits, as llama.cpp does (default); 0 leaves them "
        "float, which is slower than float for layers of 8 bits",
    )


def _run(options: argparse.Namespace, console: Console) -> Answer:
    from octavo.pipeline.gguf import import_gguf

    options.output = options.output or default_output(options.model, "gguf")
    check_outputs(options, model_outputs(options))
    found = import_gguf(options.model, options.graph, options.output, accuracy_level=options.accuracy_level)
    kinds = Counter((one.format, one.bits, one.exact) for one in found.placed)
    lines = [
        f"{count} {name} as {bits} bits{', exactly' if exact else ', rounded anew'}"
        for (name, bits, exact), count in sorted(kinds.items())
    ]
    for reason in dict.fromkeys(found.left.values()):
        lines.append(f"not placed: {_some([n for n, why in found.left.items() if why == reason])}: {reason}")
    if found.unmatched:
        lines.append(f"left float, as no tensor has their values: {_some(list(found.unmatched))}")
    data = {
        "placed": [asdict(one) for one in found.placed],
        "left": found.left,
        "unmatched": list(found.unmatched),
        "written": [shown(options.output)],
    }
    return Answer("\n".join([*lines, f"written: {shown(options.output)}"]), data)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


VERB = Verb(
    name="import-gguf",
    summary="place the weights of a GGUF file into an exported graph",
    description="""\
Take the matrices of a GGUF file into an ONNX graph of the same model, as
MatMulNBits with the file's own integers and scales (Q4_0, Q4_1, Q4_K: 4 bits;
Q5_0, Q6_K, Q8_0: 8 bits); others are rounded to 8 bits. Which weight is which
tensor is found by their values.""",
    examples=(
        "octavo import-gguf model.Q4_K_M.gguf --graph model.onnx -o model.q4.onnx",
        "octavo import-gguf model.Q8_0.gguf --graph model.onnx --accuracy-level 0",
    ),
    arguments=_arguments,
    run=_run,
    makes_file=True,
)

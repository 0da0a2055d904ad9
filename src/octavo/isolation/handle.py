"""``octavo.isolated(memory="4GiB", seconds=600).quantize(…)``: the verbs, run in a process of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from octavo.core.progress import Progress
from octavo.errors import RecipeError
from octavo.isolation.limits import Limits
from octavo.isolation.parent import Call, run

Place: TypeAlias = "str | os.PathLike[str]"

_ENTRY = "octavo.isolation.verbs:work"


@dataclass(frozen=True)
class Outcome:
    """What an isolated verb gave: text for people, plain data, and the files that it wrote.

    ``network_cut`` says whether the system let the run give up the network, ``writes_kept`` whether it kept
    the run from writing anywhere but to the folders of its outputs.
    """

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    written: tuple[Path, ...] = ()
    network_cut: bool = False
    writes_kept: bool = False

    def __str__(self) -> str:
        return self.text


def isolated(
    *,
    memory: int | str | None = None,
    seconds: float | None = None,
    file_size: int | str | None = None,
) -> Isolated:
    """Return verbs that run in a separate process, for untrusted models and data.

    ``memory`` (bytes, or ``"4GiB"``) is what each process may take, ``seconds`` how long a verb may last,
    ``file_size`` how large a file may become. A crash or a limit there is an :class:`IsolationError` here,
    and nothing is left behind.
    """
    return Isolated(Limits.of(memory, seconds, file_size))


@dataclass(frozen=True)
class Isolated:
    """The verbs of :mod:`octavo` under limits. They take what those take, and give an :class:`Outcome`.

    Models are paths, bytes or protobuf; data is a path, a list of samples, or anything that can be pickled.
    """

    limits: Limits

    def quantize(self, model: Any, data: Any = None, *, output: Place, **options: Any) -> Outcome:
        """See :func:`octavo.quantize`."""
        return self._run("quantize", (model, data), {"output": output, **options})

    def tune(self, model: Any, data: Any = None, *, output: Place, **options: Any) -> Outcome:
        """See :func:`octavo.tune`."""
        return self._run("tune", (model, data), {"output": output, **options})

    def convert_qat(self, model: Any, data: Any = None, *, output: Place, **options: Any) -> Outcome:
        """See :func:`octavo.convert_qat`."""
        return self._run("convert_qat", (model, data), {"output": output, **options})

    def plan(self, model: Any, recipe: Any = None, **options: Any) -> Outcome:
        """See :func:`octavo.plan`; with an ``output`` the plan is saved there."""
        return self._run("plan", (model, recipe), options)

    def prepare(self, model: Any, settings: Any = None, *, output: Place, **options: Any) -> Outcome:
        """See :func:`octavo.prepare`; the model is saved to ``output``."""
        return self._run("prepare", (model, settings), {"output": output, **options})

    def calibrate(self, model: Any, needs: Any, data: Any, *, output: Place, **options: Any) -> Outcome:
        """See :func:`octavo.calibrate`; ``needs`` may be None for those of the usual plan."""
        return self._run("calibrate", (model, needs, data), {"output": output, **options})

    def evaluate(self, model: Any, data: Any, task: Any = "classification", **options: Any) -> Outcome:
        """See :func:`octavo.evaluate`."""
        return self._run("evaluate", (model, data, task), options)

    def compare(self, float_model: Any, quantized: Any, data: Any, **options: Any) -> Outcome:
        """See :func:`octavo.compare`."""
        return self._run("compare", (float_model, quantized, data), options)

    def doctor(self, model: Any, data: Any = None, **options: Any) -> Outcome:
        """See :func:`octavo.doctor`."""
        return self._run("doctor", (model, data), options)

    def bench(self, model: Any, other: Any = None, data: Any = None, **options: Any) -> Outcome:
        """See :func:`octavo.bench`."""
        return self._run("bench", (model, other, data), options)

    def lint(self, model: Any, **options: Any) -> Outcome:
        """See :func:`octavo.lint`."""
        return self._run("lint", (model,), options)

    def inspect(self, model: Any) -> Outcome:
        """See :func:`octavo.inspect`."""
        return self._run("inspect", (model,), {})

    def _run(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Outcome:
        refuse_network(options.get("engine"))
        progress: Progress | None = options.pop("progress", None)
        given_up = {"network": False, "files": False}

        def listen(message: dict[str, Any]) -> None:
            if message["kind"] == "isolation":
                given_up.update({name: message.get(name) is False for name in given_up})
            elif progress is not None and message["kind"] == "progress":
                progress(*progress_of(message))

        given = {
            "verb": verb,
            "arguments": arguments,
            "options": options,
            "progress": progress is not None,
        }
        outputs = [options[name] for name in ("output", "checkpoint") if options.get(name) is not None]
        folders = tuple(Path(output).absolute().parent for output in outputs)
        answer = run(Call(_ENTRY, given, folders), self.limits, listen)
        written = tuple(Path(str(path)) for path in answer.get("written") or ())
        data = answer.get("data")
        return Outcome(
            str(answer.get("text", "")),
            data if isinstance(data, dict) else {},
            written,
            network_cut=given_up["network"],
            writes_kept=given_up["files"],
        )


def progress_of(message: dict[str, Any]) -> tuple[str, int, int | None]:
    """Phase, done and total of a message, whatever it holds."""
    done, total = message.get("done"), message.get("total")
    return (
        str(message.get("phase", "")),
        done if isinstance(done, int) else 0,
        total if isinstance(total, int) else None,
    )


def refuse_network(engine: Any) -> None:
    """Raise for an engine that is reached over a network."""
    if getattr(engine, "name", engine) == "ray":
        raise RecipeError(
            "The ray engine needs a network, which an isolated run does not have; use processes or serial."
        )

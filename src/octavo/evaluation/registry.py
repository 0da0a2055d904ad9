"""The tasks by name, and how a function of one's own becomes one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from octavo.errors import RecipeError, closest
from octavo.evaluation.task import Task
from octavo.evaluation.tasks.own import Own

F = TypeVar("F", bound=Callable[..., float])

_PACKAGE = "octavo.evaluation.tasks"
TASKS: dict[str, str] = {
    "classification": f"{_PACKAGE}.classification:Classification",
    "detection": f"{_PACKAGE}.detection:Detection",
    "text-classification": f"{_PACKAGE}.text_classification:TextClassification",
    "similarity": f"{_PACKAGE}.similarity:Similarity",
    "perplexity": f"{_PACKAGE}.perplexity:Perplexity",
    "agreement": f"{_PACKAGE}.agreement:Agreement",
}
_OWN: dict[str, Own] = {}


def metric(
    function: F | None = None,
    *,
    name: str | None = None,
    higher_is_better: bool = True,
    percent: bool = False,
) -> Any:
    """Mark a function ``(outputs, label) -> number`` as a metric: its mean over the samples is the figure.

    ``outputs`` is ``{name: array}`` of one batch, ``label`` what the data pairs with it. Afterwards
    ``octavo.evaluate(model, data, task=function)`` works, and so does its name.
    """

    def mark(marked: F) -> F:
        own = Own(marked, name or marked.__name__, higher_is_better, percent)
        if own.title in TASKS:
            raise RecipeError(f"There is a task {own.title!r} already; give the metric another name.")
        _OWN[own.title] = own
        return marked

    return mark if function is None else mark(function)


def names() -> list[str]:
    """Every name that ``task`` may be."""
    return [*TASKS, *_OWN]


def task_type(name: str) -> type[Any]:
    """The class of a built-in task."""
    module, _, attribute = TASKS[name].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found


def task_of(task: str | Task | Callable[..., float], options: Mapping[str, Any]) -> Task:
    """The task that a name, a function or a task object stands for."""
    if not isinstance(task, str):
        if options:
            raise RecipeError(
                f"{', '.join(options)}: options go into the task itself where it is given as an object."
            )
        if hasattr(task, "open"):
            return cast(Task, task)
        return next((own for own in _OWN.values() if own.function is task), None) or Own(task, task.__name__)
    if ":" in task:
        return _from_file(task)
    if task in _OWN:
        return _OWN[task]
    if task not in TASKS:
        hint = closest(task, names()) or f"; the tasks are {', '.join(names())}."
        raise RecipeError(f"There is no task {task!r}{hint}")
    kind = task_type(task)
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            hint = closest(option, known) or f"; it has {', '.join(known)}."
            raise RecipeError(f"The task {task!r} has no option {option!r}{hint}")
    built: Task = kind(**options)
    return built


def _from_file(place: str) -> Own:
    """A metric out of a Python file: ``metrics.py:mean_iou``."""
    file, _, name = place.rpartition(":")
    path = Path(file).absolute()
    if path.suffix != ".py" or not path.is_file():
        raise RecipeError(f"{place}: there is no Python file {file}; write FILE.py:FUNCTION.")
    module = load_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise RecipeError(f"{place}: {file} has no function {name!r}.")
    own = next((one for one in _OWN.values() if one.function is function), None) or Own(function, name)
    return Own(own.function, own.title, own.higher_is_better, own.percent, origin=f"{path}:{name}")


def load_file(path: Path) -> Any:
    """The module that a Python file holds; run once in each process."""
    key = f"octavo_metrics_{path.stem}"
    known = sys.modules.get(key)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} can't be loaded as Python code.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise RecipeError(f"{path} fails when it is loaded: {type(error).__name__}: {error}.") from error
    return module

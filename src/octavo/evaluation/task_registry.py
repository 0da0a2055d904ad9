"""The tasks by name, and how a function of the user's becomes a task.

A task is added by one file in :mod:`octavo.evaluation.tasks` with a dataclass that has ``name``, ``summary``
and ``open``, and by one line in ``TASKS``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from octavo.core.lazy import load_entry
from octavo.errors import RecipeError, closest

if TYPE_CHECKING:
    from octavo.evaluation.task import Task
    from octavo.evaluation.tasks.custom import CustomMetric

F = TypeVar("F", bound=Callable[..., float])

TASKS: dict[str, str] = {  # name: module in octavo.evaluation.tasks, and the class in it
    "classification": "classification:Classification",
    "detection": "detection:Detection",
    "text-classification": "text_classification:TextClassification",
    "similarity": "similarity:Similarity",
    "perplexity": "perplexity:Perplexity",
    "agreement": "agreement:Agreement",
}
_CUSTOM: dict[str, CustomMetric] = {}


def metric(
    function: F | None = None,
    *,
    name: str | None = None,
    higher_is_better: bool = True,
    percent: bool = False,
) -> Any:
    """Mark a function ``(outputs, label) -> number`` as a metric; its mean over the samples is reported.

    ``outputs`` is ``{name: array}`` of one sample, ``label`` what the data pairs with it. Afterwards
    ``octavo.evaluate(model, data, task=function)`` works, and so does the metric's name.
    """
    from octavo.evaluation.tasks.custom import CustomMetric

    def mark(marked: F) -> F:
        custom = CustomMetric(marked, name or marked.__name__, higher_is_better, percent)
        if custom.title in TASKS:
            raise RecipeError(f"There is a task {custom.title!r} already; give the metric another name.")
        _CUSTOM[custom.title] = custom
        return marked

    return mark if function is None else mark(function)


def names() -> list[str]:
    """Return every name that ``task`` may be."""
    return [*TASKS, *_CUSTOM]


def task_type(name: str) -> type[Any]:
    """Return the class of a built-in task."""
    found: type[Any] = load_entry("octavo.evaluation.tasks", TASKS[name])
    return found


def task_of(task: str | Task | Callable[..., float], options: Mapping[str, Any]) -> Task:
    """Return the task that a name, a function or a task object names, with its options set."""
    if not isinstance(task, str) and hasattr(task, "open"):
        if options:
            raise RecipeError(
                f"{', '.join(options)}: a task that is given as an object has its options already; "
                "set them there."
            )
        return cast("Task", task)
    if not isinstance(task, str):
        return _with_options(_custom(task, task.__name__), options)
    if ":" in task:
        return _with_options(_from_file(task), options)
    if task in _CUSTOM:
        return _with_options(_CUSTOM[task], options)
    if task not in TASKS:
        hint = closest(task, names()) or "."
        raise RecipeError(f"There is no task {task!r}{hint} The tasks are {', '.join(names())}.")
    kind = task_type(task)
    _check_options(task, [field.name for field in fields(kind)], options)
    built: Task = kind(**options)
    return built


def _with_options(custom: CustomMetric, options: Mapping[str, Any]) -> CustomMetric:
    _check_options(custom.title, custom.OPTIONS, options)
    return replace(custom, **options)


def _check_options(task: str, known: Any, options: Mapping[str, Any]) -> None:
    for option in options:
        if option not in known:
            hint = closest(option, known) or _elsewhere(option) or (known and f"; it has {', '.join(known)}.")
            raise RecipeError(f"The task {task!r} has no option {option!r}{hint or '.'}")


def _elsewhere(option: str) -> str:
    """Return which other tasks have an option, as the end of a sentence; empty if none has."""
    found = [name for name in TASKS if option in {field.name for field in fields(task_type(name))}]
    if not found:
        return ""
    return f"; the task{'s'[: len(found) > 1]} {', '.join(found)} {'have' if len(found) > 1 else 'has'} it."


def _custom(function: Callable[..., float], name: str) -> CustomMetric:
    """Return the metric that a function was marked as, or a new one with this name."""
    from octavo.evaluation.tasks.custom import CustomMetric

    marked = next((one for one in _CUSTOM.values() if one.function is function), None)
    return marked or CustomMetric(function, name)


def _from_file(place: str) -> CustomMetric:
    """Load a metric from a Python file: ``metrics.py:mean_iou``."""
    file, _, name = place.rpartition(":")
    path = Path(file).absolute()
    if path.suffix != ".py" or not path.is_file():
        raise RecipeError(f"{place}: there is no Python file {file}; write FILE.py:FUNCTION.")
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise RecipeError(f"{place}: {file} has no function {name!r}.")
    return replace(_custom(function, name), origin=f"{path}:{name}")


def load_file(path: Path) -> Any:
    """Return the module that a Python file holds; it is run once in each process."""
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
    except (Exception, SystemExit) as error:
        del sys.modules[key]
        raise RecipeError(f"{path} fails when it is loaded: {type(error).__name__}: {error}.") from error
    return module

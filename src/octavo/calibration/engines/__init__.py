"""Where the work is done: in this process, in several, or on a Ray cluster; the results are the same."""

from __future__ import annotations

from octavo.calibration.engines.protocol import Engine, FileJob, Job, held, threads_each
from octavo.core.arguments import check_arguments
from octavo.core.cpu import cores
from octavo.errors import RecipeError, closest

__all__ = ["ENGINES", "Engine", "FileJob", "Job", "engine_of", "held", "threads_each"]

ENGINES = ("auto", "serial", "processes", "ray")


def engine_of(
    engine: str | Engine = "auto",
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
) -> Engine:
    """Return the engine of a name; one that is given as an object is taken as it is.

    ``auto`` begins in this process and goes on in several where the rest of the work is worth starting them.
    ``threads`` are the threads of all workers on this machine together; in Ray, of each worker.
    """
    if not isinstance(engine, str):
        if not hasattr(engine, "map"):
            raise RecipeError(f"engine is one of {', '.join(ENGINES)}, or an engine, not {engine!r}.")
        return engine
    check_arguments(workers=workers)
    if engine not in ENGINES:
        raise RecipeError(
            f"There is no engine {engine!r}{closest(engine, ENGINES) or '.'} "
            f"The engines are {', '.join(ENGINES)}."
        )
    if workers is not None and workers < 1:
        raise RecipeError(f"The number of workers must be 1 or more, not {workers}.")
    if engine == "serial" and (workers or 1) > 1:
        raise RecipeError(f"workers={workers} can't be combined with engine='serial'; leave one of them out.")
    if address is not None and engine != "ray":
        raise RecipeError(f"An address is for the engine 'ray', not for {engine!r}; leave one of them out.")
    match engine:  # a module is loaded when its engine is chosen
        case "ray":
            from octavo.calibration.engines.ray import RayEngine

            return RayEngine(workers, address, threads)
        case "processes":
            from octavo.calibration.engines.processes import Processes

            return Processes(workers, threads)
        case "auto" if min(workers or cores(), threads or cores()) > 1:
            from octavo.calibration.engines.processes import Auto

            return Auto(workers, threads)
        case _:
            from octavo.calibration.engines.protocol import Serial

            return Serial(threads)

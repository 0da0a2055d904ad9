"""The flags that say where calibration runs, shared by all verbs that run a model on data."""

from __future__ import annotations

import argparse
from typing import Any

from octavo.cli.data import count

ENGINES = ("auto", "serial", "processes", "ray")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a parser."""
    group = parser.add_argument_group("where it runs")
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="in this process, in several, or on a Ray cluster (default: several processes where it pays)",
    )
    group.add_argument("--workers", metavar="N", type=count, help="workers (default: one for each core)")
    group.add_argument("--address", metavar="HOST:PORT", help="the Ray cluster, or 'auto' on a node of it")
    group.add_argument(
        "--threads", metavar="N", type=count, help="threads of all workers together (ray: of each)"
    )


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as arguments of a call."""
    return {name: getattr(options, name) for name in ("engine", "workers", "address", "threads")}

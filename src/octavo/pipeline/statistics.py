"""Calibration by itself: statistics that can be saved, merged and used again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo import calibration
from octavo.algorithms.layers.probes import probed
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.calibration import saved
from octavo.core.origin import Origin
from octavo.core.plan import Plan
from octavo.core.requests import FOR_EVERY_METHOD
from octavo.core.scheme import Method
from octavo.core.stats import Stats
from octavo.pipeline.calibrate import samples_of, statistics_requests
from octavo.pipeline.options import Run
from octavo.pipeline.prepare import PreparedModel, prepare_name
from octavo.pipeline.weight_inputs import request_inputs


def statistics(
    prepared: PreparedModel,
    needs: Mapping[str, Method] | Plan,
    data: Any,
    run: Run,
    *,
    every_method: bool = False,
    shard: tuple[int, int] | None = None,
    checkpoint: str | Path | None = None,
) -> Stats:
    """Run the samples once and keep what the methods of a plan read; with ``every_method`` what any reads."""
    wanted = statistics_requests(needs.needs() if isinstance(needs, Plan) else needs)
    if every_method:
        wanted = dict.fromkeys(wanted, FOR_EVERY_METHOD)
    wanted = calibration.sampled(prepared.model, wanted, run.observation.stride)
    requests = StatisticsRequests()
    if isinstance(needs, Plan):
        request_inputs(prepared.model, needs, requests)
    origin = Origin(prepared.fingerprint or "", prepare_name(run.prepare), {}, source=saved.name_of(data))
    with probed(prepared.model, requests) as extra:
        return calibration.gather(
            prepared.model,
            {**wanted, **extra},
            samples_of(prepared.model, data, run.observation.samples),
            run.execution.start(),
            origin=origin if prepared.fingerprint is not None else None,
            shard=shard,
            checkpoint=checkpoint,
            providers=run.execution.providers,
            custom_ops=run.execution.custom_ops,
            progress=lambda done, total: run.progress("calibrate", done, total),
        )

"""One worker: ``python -m fuzzing.worker REQUEST`` runs a harness for a while in a process of its own.

The request is JSON: harness, engine, until (a time of the monotonic clock), budget (seconds of processor
time), seed, home (a folder of the worker's own), pool (one that is shared). In its home it leaves the
journal, the findings, and the lines that were reached.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(request: dict[str, Any]) -> None:
    """Do what is asked."""
    faulthandler.enable()
    name, engine = request["harness"], request["engine"]
    home, pool = Path(request["home"]), Path(request["pool"])
    if engine == "atheris":
        from fuzzing.engines import with_atheris

        harness = with_atheris.instrumented(name)
    else:
        from fuzzing.harnesses import load

        harness = load(name)
    from fuzzing import guard
    from fuzzing.campaign import Campaign, Pool
    from fuzzing.engines import own, with_hypothesis
    from fuzzing.harnesses import corpus
    from fuzzing.lines import Lines

    atexit.register(guard.remove_folder)
    (home / "folder").write_text(str(guard.folder().parent))
    seeds = corpus(name)
    lines = Lines()
    campaign = Campaign(name, harness, home, lines)
    guard.limit_memory()
    left = max(1.0, request["until"] - time.monotonic())
    limits = {"seconds": min(left, request["budget"]), "seed": request["seed"]}
    if engine == "atheris":
        with_atheris.run(campaign, seeds, pool, **limits)
        return
    lines.start()
    if engine == "hypothesis":
        with_hypothesis.run(campaign, seeds, **limits)
    elif engine == "replay":
        for data in (*seeds, *Pool(pool).news()):
            campaign.execute(data)
    else:
        limits["seconds"] = left
        own.run(campaign, seeds, lines=lines, pool=Pool(pool), budget=request["budget"], **limits)
    campaign.note_lines()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

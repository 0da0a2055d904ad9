"""Runs one task of a benchmark: ``_worker.py MODULE_FILE FUNCTION PAYLOAD.json ANSWER.json``.

The answer is ``{"figures": …}`` or ``{"error": "a few words"}``. No answer at all means that the
process died, which `_measure.run_task` reports in its turn.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path


def main() -> None:
    module_file, function, payload_file, answer_file = sys.argv[1:]
    sys.path.insert(0, str(Path(module_file).parent))
    from _measure import TaskError, shorten

    module = importlib.import_module(Path(module_file).stem)
    payload = json.loads(Path(payload_file).read_text())
    answer: dict[str, object]
    try:
        answer = {"figures": getattr(module, function)(payload)}
    except TaskError as error:
        answer = {"error": str(error)}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        answer = {"error": shorten(f"{type(error).__name__}: {error}")}
    Path(answer_file).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()

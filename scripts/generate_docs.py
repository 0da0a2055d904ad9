"""Write the pages of documentation that come from tables; ``--check``: only see if they are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import api_page
import linting_page
import migration
import table_pages

from octavo.ops.table import RULES
from octavo.targets import TARGETS

DOCS = Path(__file__).resolve().parent.parent / "docs"


def pages() -> dict[Path, str]:
    """Each generated page and its content."""
    return {
        DOCS / "api.md": api_page.page(),
        DOCS / "ops.md": table_pages.ops_page(RULES.values()),
        DOCS / "targets.md": table_pages.targets_page(TARGETS.values()),
        DOCS / "lint.md": linting_page.page(),
        DOCS / "migrate.md": migration.page(),
    }


def stale() -> list[Path]:
    """The pages whose file does not hold what the tables say."""
    return [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    if parser.parse_args().check:
        old = stale()
        if old:
            sys.stderr.write(f"out of date: {', '.join(path.name for path in old)}; run 'make docs'.\n")
        return 1 if old else 0
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"written: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

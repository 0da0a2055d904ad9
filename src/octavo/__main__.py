"""``python -m octavo``: the command line where the script is not on the path."""

from __future__ import annotations

from octavo.cli.main import entry

if __name__ == "__main__":
    entry()

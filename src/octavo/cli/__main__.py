"""``python -m octavo.cli``: the command line where the script is not on the path."""

from octavo.cli.main import entry

if __name__ == "__main__":
    entry()

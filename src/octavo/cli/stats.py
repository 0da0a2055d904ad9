"""``octavo stats``: merge files of statistics, and show what is in them."""

from __future__ import annotations

import argparse

from octavo.cli.console import Console
from octavo.cli.paths import check_outputs, shown
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError, TableError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="merge|show", choices=("merge", "show"), help="what to do")
    parser.add_argument("files", metavar="STATS", nargs="+", help="files that 'octavo calibrate' wrote")
    parser.add_argument("-o", "--output", metavar="STATS", help="merge: where the merged statistics go")
    parser.add_argument("--tensors", action="store_true", help="show: list every tensor")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    return _merge(options, console) if options.what == "merge" else _show(options)


def _merge(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.calibration.saved import load
    from octavo.reporting.statistics_tables import stats_dict, stats_line

    if options.output is None:
        raise RecipeError("stats merge needs -o: say where the merged statistics go.")
    check_outputs(options, {"-o": options.output})
    merged = load(options.files[0])
    for number, name in enumerate(options.files[1:], 2):
        console.progress("merge", number, len(options.files))
        try:
            merged = merged.merge(load(name))
        except TableError as error:
            raise error if str(error).startswith(name) else TableError(f"{name}: {error}") from error
    octavo.save_stats(merged, options.output)
    return Answer(
        f"{stats_line(merged)}\nwritten: {shown(options.output)}",
        {"written": [shown(options.output)], **stats_dict(merged)},
    )


def _show(options: argparse.Namespace) -> Answer:
    from octavo.calibration.saved import load
    from octavo.reporting.statistics_tables import stats_dict, stats_text

    if len(options.files) != 1:
        raise RecipeError("stats show takes one file; merge them first, or show one after the other.")
    stats = load(options.files[0])
    return Answer(stats_text(stats, tensors=options.tensors), stats_dict(stats))


VERB = Verb(
    name="stats",
    summary="merge or show saved statistics",
    description="""\
Merge statistics of parts of the data into those of the whole, to the bit what one
run gives; or show what a file holds. Files of different models are refused, and so
are files that have a sample in common: nothing is counted twice.""",
    examples=(
        "octavo stats merge part1.stats part2.stats -o model.stats",
        "octavo stats show model.stats",
        "octavo stats show model.stats --json",
    ),
    arguments=_arguments,
    run=_run,
)

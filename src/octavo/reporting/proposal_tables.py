"""A proposal as text: what was tried, what it gained, and the recipe with the gain beside each change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from octavo.reporting.figures import decibels_text, signed, speed_text
from octavo.reporting.text import clean, many, size

Data = Mapping[str, Any]


def proposal_line(data: Data) -> str:
    """Return what is gained, on one line."""
    where = f"on {many(int(data['held_back']), 'held-back sample')}" if data["held_back"] else "on the data"
    if not data["tried"]:
        return "nothing to try: no setting of the recipe concerns what loses most"
    if not data["is_better"]:
        return f"no change helps ({many(len(data['tried']), 'change')} tried {where})"
    before, after = data["start" if data["is_recorded"] else "given"], data["proposed"]
    return (
        f"{decibels_text(before['sqnr_db'])} → {decibels_text(after['sqnr_db'])} {where},"
        f" {size(before['bytes'])} → {size(after['bytes'])}"
    )


def gain_text(one: Data) -> str:
    """Return what a change gains and costs: ``+0.8 dB (0.5 … 1.1), +12 kB, 1.52 × → 1.48 × float``."""
    if one["after"] is None:
        return "could not be carried out"
    before, after = one["before"], one["after"]
    parts = [f"{signed(one['gain_db'], '.1f')} dB"]
    if one["interval"] is not None:
        low, high = one["interval"]
        parts[0] += f" ({signed(low, '.1f')} … {signed(high, '.1f')})"
    grown = after["bytes"] - before["bytes"]
    parts.append(f"{'+' if grown > 0 else '−'}{size(abs(grown))}" if grown else "same size")
    if before["speed"] and after["speed"]:
        parts.append(f"{before['speed']['value']:.2f} → {after['speed']['value']:.2f} × float's speed")
    return ", ".join(parts)


def proposal_table(data: Data) -> str:
    """Return the changes that help, those that do not, and what they add up to."""
    lines = [f"Proposal: {proposal_line(data)}"]
    kept = [one for one in data["tried"] if one["kept"]]
    if not data["is_recorded"] and data["tried"]:
        lines.append("  the model does not carry its recipe; changes are made to one that was read off it")
    if data["is_better"] and not kept:
        lines.append("  quantize again with this recipe: the model is worse than what the recipe gives")
    for one in kept:
        lines.append(f"  + {_words(one)}: {gain_text(one)}")
    for one in data["tried"]:
        if not one["kept"]:
            why = clean(one["reason"], 200)
            lines.append(f"  − {_words(one)}: {gain_text(one)}{f'; {why}' if why else ''}")
    if data["is_better"] and data["proposed"]["speed"]:
        lines.append(f"  speed: {speed_text(data['proposed']['speed'])} float's")
    lines += [f"  note: {clean(note, 400)}" for note in data["notes"]]
    return "\n".join(lines)


def _words(one: Data) -> str:
    tensor = clean(one["tensor"], 120)
    return f"{tensor}: {clean(one['change']['text'], 300)}" if tensor else clean(one["change"]["text"], 300)


def recipe_text(recipe: Data, data: Data) -> str:
    """Return a recipe as YAML, with what was gained in comments beside the lines that are new."""
    gains: dict[str, str] = {}
    for one in data["tried"]:
        if one["kept"]:
            for override in one["change"]["overrides"]:
                gains[f"tensor\n{override['tensor']}"] = gain_text(one)
            for node in one["change"]["exclude"]:
                gains[f"node\n{node}"] = gain_text(one)
    lines = [f"# {proposal_line(data)}"]
    section = ""
    for line in yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=1 << 16).splitlines():
        if line and line[0] not in " -":
            section = line.partition(":")[0]
        gain = gains.get(_subject(line, section), "")
        lines.append(f"{line}  # {gain}" if gain else line)
    return "\n".join(lines) + "\n"


def _subject(line: str, section: str) -> str:
    """Return the tensor of an override, or the node of an exclusion, that a line of YAML begins."""
    text = line.strip()
    if section == "overrides" and text.startswith("- tensor: "):
        return f"tensor\n{yaml.safe_load(text.removeprefix('- tensor: '))}"
    if section == "exclude" and text.startswith("- "):
        return f"node\n{yaml.safe_load(text.removeprefix('- '))}"
    return ""

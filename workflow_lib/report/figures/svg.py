"""Makes the SVG of figures smaller without a visible change."""

from __future__ import annotations

import re

_NUMBER = rb"-?\d+(?:\.\d+)?"
_FAMILY = re.compile(rb" ?font-family: ([^;\"]+);?")
_EMPTY = re.compile(rb"<g(?: id=\"[^\"]*\")?/>|<g(?: id=\"[^\"]*\")?></g>")
_BARE = re.compile(rb"<g>((?:(?!</?g[ />]).)*)</g>", re.DOTALL)


def shortened(svg: bytes) -> bytes:
    """Shorten an SVG of matplotlib's. Numbers are rounded to a hundredth of a point. Indentation,
    unused ids, empty groups and the repeated name of the font are removed."""
    svg = re.sub(rb"<!DOCTYPE[^>]*>\s*", b"", svg)
    svg = re.sub(rb">\n *<", b"><", svg)
    svg = re.sub(rb' transform="rotate\(-?0(?:\.0*)? [^"]*"', b"", svg)
    svg = re.sub(
        rb' (?:d|x|y|width|height|points|transform)="[^"]*"', lambda part: _rounded(part[0]), svg
    )
    svg = re.sub(rb'(?<= d=")[^"]*', lambda path: _path(path[0]), svg)
    families = set(_FAMILY.findall(svg))
    if len(families) == 1:
        family = families.pop()
        svg = _FAMILY.sub(b"", svg).replace(b"<svg ", b'<svg font-family="%s" ' % family, 1)
    svg = re.sub(rb' style="([^"]*)"', lambda style: _style(style[1]), svg)
    used = set(re.findall(rb"#([^)\"]+)", svg))
    svg = re.sub(rb' id="([^"]*)"', lambda each: each[0] if each[1] in used else b"", svg)
    return _without_groups(svg)


def _rounded(text: bytes) -> bytes:
    """Round numbers to two decimals, and write them as short as possible."""
    return re.sub(rb"-?\d+\.\d+", lambda number: _short(float(number[0])), text)


def _short(number: float) -> bytes:
    return (b"%.2f" % (round(number, 2) + 0.0)).rstrip(b"0").rstrip(b".")


def _path(path: bytes) -> bytes:
    """Shorten a path: without blanks between commands, and with one number for lines along an axis.
    M 1 2 ⏎ L 3 2 becomes M1 2H3."""
    pieces = []
    at: tuple[bytes, bytes] | None = None
    for command, numbers in re.findall(rb"([A-Za-z])([^A-Za-z]*)", path):
        values = re.findall(_NUMBER, numbers)
        if command == b"L" and at is not None and len(values) == 2 and at[1] == values[1]:
            pieces.append(b"H" + values[0])
        elif command == b"L" and at is not None and len(values) == 2 and at[0] == values[0]:
            pieces.append(b"V" + values[1])
        else:
            pieces.append(command + b" ".join(values))
        at = (values[-2], values[-1]) if len(values) > 1 else None
    return b"".join(pieces)


def _style(declarations: bytes) -> bytes:
    parts = [part.strip().replace(b": ", b":") for part in declarations.split(b";")]
    kept = b";".join(part for part in parts if part)
    return b' style="%s"' % kept if kept else b""


def _without_groups(svg: bytes) -> bytes:
    """Remove groups that are empty or have no attributes, from the inside out."""
    while True:
        fewer = _BARE.sub(rb"\1", _EMPTY.sub(b"", svg))
        if fewer == svg:
            return svg
        svg = fewer

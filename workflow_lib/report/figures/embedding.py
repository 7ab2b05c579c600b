"""The figures as the page holds them: checked, with unique ids, and packed if they are large.

The files of a sweep's figures may come from others. So an XML parser reads them, and they are
written anew. An element, an attribute or a value that is not on the lists in this module is
refused. A browser then sees exactly what the parser saw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from markupsafe import Markup

from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError, read_bytes
from workflow_lib.report.figures import style
from workflow_lib.report.figures.html import embedded
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.safety import printable

#: if figures together have more bytes, they are packed, and the page's script unpacks them
_MOST_PLAIN_BYTES = 1_500_000
#: how much larger a figure is on the page than in print
_ENLARGED = 1.3


def drawn_for_page(entries: Iterable[FigureEntry], directory: Path) -> list[dict[str, Any]]:
    """Draw figures into a directory; return what a small page shows of each, unpacked."""
    shown = []
    for entry in entries:
        directory.mkdir(parents=True, exist_ok=True)
        with style.styled(entry.stem):
            style.save(entry.draw(), directory / entry.stem)
        figure = figure_in_page(entry, directory)
        shown.append({**figure, "svg": Markup(figure["svg"])})
    return shown


def figures_in_page(entries: Iterable[FigureEntry], directory: Path) -> list[dict[str, Any]]:
    """What the page shows of each figure. Figures over time are not in the page, only named.
    ``same_as`` is the first figure with the same caption, None if it is this one.

    Raises FileNotFoundError if a file is missing, and RecordError if one would load or run
    something.
    """
    shown = [figure_in_page(entry, directory) for entry in entries]
    pack = sum(len(figure["svg"]) for figure in shown) > _MOST_PLAIN_BYTES
    first_of_caption: dict[str, dict[str, Any]] = {}
    for number, figure in enumerate(shown):
        if not figure["over_time"]:
            first = first_of_caption.setdefault(figure["caption"], figure)
            figure["same_as"] = None if first is figure else first
        svg, name = figure.pop("svg"), f"figure-{number}"
        figure["packed"] = name if svg and pack else ""
        figure["svg"] = embedded(name, svg) if figure["packed"] else Markup(svg)
    return shown


def figure_in_page(entry: FigureEntry, directory: Path) -> dict[str, Any]:
    """What a page shows of one figure; ``svg`` is "" for a figure over time. Raises as
    :func:`figures_in_page`."""
    path = directory / f"{entry.stem}.svg"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such figure; draw the figures of these tables first")
    named = {
        "stem": entry.stem,
        "title": entry.title,
        "caption": entry.caption,
        "over_time": entry.over_time,
        "svg": "",
    }
    if entry.over_time:
        return named
    svg, (width, height) = safe_svg(path, entry.stem)
    return {
        **named,
        "svg": svg,
        "width_pt": width * _ENLARGED,
        "ratio": f"{width:g} / {height:g}",
    }


_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_NUMBERS = r"[-+0-9.,eE %]*"
_WORD = r"[A-Za-z0-9_.-]+"
_COLOUR = rf"#[0-9a-fA-F]{{3,8}}|none|[a-z]+|url\(#{_WORD}\)"
_ELEMENTS = frozenset(
    ("svg", "defs", "g", "path", "use", "rect", "clipPath", "pattern", "image", "text", "title")
)
#: letters of what is refused that a message repeats
_TOLD = 120
#: the content of matplotlib's style element; attributes of the root replace it
_STYLE = "*{stroke-linejoin: round; stroke-linecap: butt}"
_ATTRIBUTES: Mapping[str, re.Pattern[str]] = {
    **{name: re.compile(_NUMBERS) for name in ("x", "y", "viewBox")},
    **{name: re.compile(rf"{_NUMBERS}(pt)?") for name in ("width", "height")},
    "d": re.compile(r"[-+0-9.,eE A-Za-z\n]*"),
    "transform": re.compile(rf"((translate|rotate|scale|matrix)\({_NUMBERS}\) ?)+"),
    "id": re.compile(_WORD),
    "clip-path": re.compile(rf"url\(#{_WORD}\)"),
    "href": re.compile(rf"#{_WORD}|data:image/png;base64,[A-Za-z0-9+/=\s]+"),
    "fill": re.compile(_COLOUR),
    "pointer-events": re.compile(r"all|none"),
    "patternUnits": re.compile(r"userSpaceOnUse"),
    "version": re.compile(r"1\.1"),
    "font-family": re.compile(r"[A-Za-z0-9 ,'-]+"),
    "style": re.compile(r"[^<>\\]*"),
}
_DECLARATIONS: Mapping[str, re.Pattern[str]] = {
    **{name: re.compile(_COLOUR) for name in ("fill", "stroke")},
    **{
        name: re.compile(rf"{_NUMBERS}(px)?")
        for name in (
            *("stroke-width", "stroke-dashoffset", "stroke-miterlimit", "stroke-opacity"),
            *("fill-opacity", "opacity", "font-size"),
        )
    },
    "stroke-dasharray": re.compile(rf"none|{_NUMBERS}"),
    **{
        name: re.compile(r"[a-z-]+")
        for name in (
            *("stroke-linecap", "stroke-linejoin", "text-anchor", "image-rendering"),
            *("fill-rule", "font-weight", "font-style"),
        )
    },
    "font": re.compile(r"[A-Za-z0-9 .,'-]+"),
}


class _Writer:
    """Writes an SVG anew as a parser reads it; ids get a prefix, and the root loses its size."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path, self._prefix = path, prefix
        self.parts: list[str] = []
        self.size: tuple[float, float] | None = None
        self._depth = 0
        #: the text of matplotlib's style element, while it is read
        self._style: str | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = self._local(name, _SVG)
        self._depth += 1
        if local == "style":
            self._style = ""
            return
        if local not in _ELEMENTS or (local == "svg") != (self._depth == 1):
            self._refuse(f"an element {local!r}")
        known = {self._attribute(attribute): value for attribute, value in attributes.items()}
        for attribute, value in known.items():
            self._check(attribute, value)
        if local == "svg":
            self._begin(known)
        written = "".join(
            f" {attribute}={quoteattr(self._own(attribute, v))}" for attribute, v in known.items()
        )
        self.parts.append(f"<{local}{written}>")

    def _begin(self, attributes: dict[str, str]) -> None:
        """Take the root's size out of its attributes, because the page sets the size."""
        ends = [attributes.pop(end, "") for end in ("width", "height")]
        if not all(re.fullmatch(r"[0-9]{1,6}([.][0-9]{1,9})?pt", end) for end in ends):
            self._refuse(f"a size of {ends}")
        self.size = float(ends[0][:-2]), float(ends[1][:-2])
        attributes |= {
            "role": "img",
            "aria-labelledby": f"{self._prefix}title",
            "stroke-linejoin": "round",
            "stroke-linecap": "butt",
            "xmlns": _SVG,
        }

    def end(self, name: str) -> None:
        self._depth -= 1
        if self._style is not None:
            if self._style != _STYLE:
                self._refuse("a style of its own")
            self._style = None
            return
        self.parts.append(f"</{self._local(name, _SVG)}>")

    def text(self, text: str) -> None:
        if self._style is not None:
            self._style += text
        else:
            self.parts.append(escape(text))

    def doctype(self, *_: object) -> NoReturn:
        self._refuse("a document type")

    def _local(self, name: str, namespace: str) -> str:
        space, _, local = name.rpartition(" ")
        if space != namespace:
            self._refuse(f"a name of {space or 'no namespace'!r}")
        return local

    def _attribute(self, name: str) -> str:
        return self._local(name, _XLINK) if " " in name else name

    def _check(self, name: str, value: str) -> None:
        if name not in _ATTRIBUTES or not _ATTRIBUTES[name].fullmatch(value):
            self._refuse(f"an attribute {name}={value[:40]!r}")
        for declaration in value.split(";") if name == "style" else ():
            known, _, setting = (part.strip() for part in declaration.partition(":"))
            if known and not (known in _DECLARATIONS and _DECLARATIONS[known].fullmatch(setting)):
                self._refuse(f"a style {declaration[:40]!r}")

    def _own(self, name: str, value: str) -> str:
        """A value with the figure's prefix before ids."""
        if name == "id":
            return f"{self._prefix}{value}"
        if name == "href" and value.startswith("#"):
            return f"#{self._prefix}{value[1:]}"
        return value.replace("url(#", f"url(#{self._prefix}")

    def _refuse(self, what: str) -> NoReturn:
        raise RecordError(
            f"{self._path}: it holds {printable(what, _TOLD)}, which no figure of this package "
            "has; draw the figures again"
        )


def safe_svg(path: Path, stem: str) -> tuple[str, tuple[float, float]]:
    """A figure as a page may hold it, and its width and height in points.

    Its ids begin with ``stem``, so that figures do not share clip paths. Raises FileNotFoundError,
    and RecordError if the file is not an SVG, or holds something that no figure of this package
    has.
    """
    writer = _Writer(path, f"{stem}-")
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = writer.start
    parser.EndElementHandler = writer.end
    parser.CharacterDataHandler = writer.text
    parser.StartDoctypeDeclHandler = writer.doctype
    try:
        parser.Parse(read_bytes(path, bounds.FIGURE_BYTES), True)
    except RecordError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:
        # The last two: an encoding that does not exist, or one of several bytes a character.
        reason = printable(str(error), _TOLD)
        raise RecordError(f"{path}: not an SVG: {reason}; draw the figures again") from None
    if writer.size is None:
        raise RecordError(f"{path}: an SVG without a size; draw the figures again")
    return "".join(writer.parts), writer.size

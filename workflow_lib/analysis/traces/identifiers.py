"""Takes the name of a kernel apart: its path, and the identifiers among its template's arguments.

A name is either C++ as a demangler writes it, or mangled by the Itanium C++ ABI
(https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), or a plain identifier, as of Triton
and Tensile. Of a mangled name only the identifiers are read, which is less than demangling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: what stands in a path without being a name of its own
_NO_NAME = re.compile(r"\(anonymous namespace\)|\{lambda|\[clone [^\]]*\]")
_PARTS = re.compile(r"[<>() :]|[^<>() :]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
#: of a mangled name: a literal, a substitution, or the length of an identifier
_MANGLED_PART = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|(\d+)")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+")


@dataclass(frozen=True)
class Name:
    """A kernel's name, taken apart."""

    #: namespaces and classes, and the kernel's own identifier last
    path: tuple[str, ...]
    #: all identifiers among the arguments of its template, in their order
    arguments: tuple[str, ...]

    @property
    def own(self) -> str:
        """The identifier of the kernel itself."""
        return self.path[-1] if self.path else ""


def words(identifier: str) -> list[str]:
    """The words of an identifier in lower case: ``cunn_SoftMaxForward`` is cunn, soft, max and
    forward."""
    return [word.lower() for word in _WORD.findall(identifier)]


def taken_apart(name: str) -> Name:
    """The parts of a kernel's name; without the type that it returns, and its parameters."""
    if name.startswith("_Z"):
        return _mangled(name)
    path: list[str] = []
    arguments: list[str] = []
    depth = parentheses = begun = 0
    for part in _PARTS.finditer(text := _NO_NAME.sub("", name)):
        mark = part[0]
        if depth and mark in "()":
            parentheses += 1 if mark == "(" else -1
        elif parentheses > 0:
            # There ``<`` and ``>`` may compare, as in ``enable_if<(width > 0)>``.
            continue
        elif mark == "<":
            begun = part.end() if depth == 0 else begun
            depth += 1
        elif mark == ">" and depth:
            depth -= 1
            if depth == 0:
                arguments = _IDENTIFIER.findall(text, begun, part.start())
        elif depth:
            continue
        elif mark == "(":
            break
        elif mark == " ":
            # What went before is the type that the kernel returns.
            path, arguments = [], []
        elif mark not in ":>)":
            path.append(mark)
    if depth:
        # The name was cut off within its template's arguments.
        arguments = _IDENTIFIER.findall(text, begun)
    return Name(tuple(path), tuple(arguments))


def _mangled(name: str) -> Name:
    nested = name.startswith("_ZN")
    path: list[str] = []
    arguments: list[str] = []
    found = path
    at = 3 if nested else 2
    while at < len(name):
        part = _MANGLED_PART.match(name, at)
        if part and part[1]:
            at = part.end() + int(part[1])
            found.append(name[part.end() : at])
            if not nested and found is path:
                found = arguments
        elif part:
            at = part.end()
        elif name[at] == "I":
            found, at = arguments, at + 1
        elif found is path and name[at] == "E":
            break
        else:
            at += 1
    return Name(tuple(path), tuple(arguments))

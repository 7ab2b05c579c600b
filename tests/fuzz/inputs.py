"""Files as somebody might make them who means harm: what is right, with a few edits."""

from __future__ import annotations

import copy
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.hostile import HOSTILE

#: what readers have stumbled over, here or elsewhere
TOKENS: tuple[bytes, ...] = (
    *(b"", b"0", b"-1", b"1e308", b"1e309", b"-1e-320", b"NaN", b"Infinity", b"nan", b"inf"),
    *(b"9223372036854775808", b"-9223372036854775809", b"9" * 5000, b"0." + b"0" * 500 + b"1"),
    *(b"null", b"true", b'""', b"[]", b"{}", b"[" * 3000, b'{"a":' * 3000, b"]", b"}", b'"'),
    *(b",", b",,", b"\n", b"\r", b"\r\n", b"\0", b"\x1b[2J", b"\xff\xfe", b"\xed\xa0\x80"),
    *(b"\\ud800", b'"\\ud800"', b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x0b", b"\x85", b" ", b"\t"),
    *(
        b"&a [*a]",
        b"*a",
        b"<<: *a\n",
        b"!!python/name:os.system",
        b"!!binary x",
        b"0x" + b"f" * 5000,
    ),
    *(b"2026-99-99", b"1:1:1:1", b"? a", b"- - - - -", b"---\n", b"...\n", b"%YAML 9.9\n", b"!"),
    *(b"../../x", b"/etc/passwd", b"a/b/c", b".", b"..", b"\x1f\x8b", b"PK\x01\x02", b"PAR1"),
    *(b"<script>", b"&lt;", b"<!DOCTYPE a>", b"url(x)", b"data:text/html,x", b"}, {", b"1.1.1pt"),
    *(b"a" * 70_000, b'File "' * 500, b"[rank1]" * 500),
    *(each.encode("utf-8", "surrogatepass") for each in HOSTILE),
)
#: numbers and other values in the place of those that are right
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**19, 10**400, 1e308, -1e308),
    *(0.5, 1e-320, -0.0, float("nan"), float("inf"), "", "a", "1", [], {}, [[]], [None], {"": 0}),
    *([1] * 50, ["a"], {"a": {"b": [1]}}, "x" * 5000, "\ud800", *HOSTILE),
)

_EDITS = st.lists(
    st.tuples(
        st.sampled_from(("cut", "double", "put", "put", "over", "flip", "end")),
        st.integers(0, 1 << 30),
        st.integers(1, 64),
        st.sampled_from(TOKENS),
    ),
    min_size=1,
    max_size=4,
)


def edited(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of ``seeds`` with bytes cut out, doubled, put in, written over, flipped or cut off."""

    def apply(seed: bytes, edits: Sequence[tuple[str, int, int, bytes]]) -> bytes:
        for kind, where, length, token in edits:
            at = where % (len(seed) + 1)
            match kind:
                case "cut":
                    seed = seed[:at] + seed[at + length :]
                case "double":
                    seed = seed[:at] + seed[at : at + length] * 3 + seed[at + length :]
                case "put":
                    seed = seed[:at] + token + seed[at:]
                case "over":
                    seed = seed[:at] + token + seed[at + len(token) :]
                case "flip" if at < len(seed):
                    seed = seed[:at] + bytes([seed[at] ^ 1 << length % 8]) + seed[at + 1 :]
                case _:
                    seed = seed[:at]
        return seed

    return st.builds(apply, st.sampled_from(list(seeds)), _EDITS)


def replaced(seeds: Sequence[Any], write: Callable[[Any], bytes]) -> st.SearchStrategy[bytes]:
    """One of ``seeds``, nested lists and dicts, with values, or whole parts, that are others."""
    changes = st.lists(
        st.tuples(
            st.integers(0, 1 << 20),
            st.sampled_from(("value", "value", "value", "gone", "more")),
            st.sampled_from(VALUES),
        ),
        min_size=1,
        max_size=3,
    )

    def apply(seed: Any, edits: Sequence[tuple[int, str, Any]]) -> bytes:
        plain = json.loads(json.dumps(seed))
        for where, kind, shared in edits:
            value = copy.deepcopy(shared)  # what is put in may be edited next
            places = list(_places(plain))
            if not places:
                break
            holder, key = places[where % len(places)]
            if kind == "gone":
                del holder[key]
            elif kind == "more" and isinstance(holder, dict):
                holder[str(value)[:40]] = value
            else:
                holder[key] = value
        return write(plain)

    return st.builds(apply, st.sampled_from(list(seeds)), changes)


def _places(plain: Any) -> Any:
    if isinstance(plain, dict | list):
        for key in list(plain) if isinstance(plain, dict) else range(len(plain)):
            yield plain, key
            yield from _places(plain[key])


def as_json(plain: Any) -> bytes:
    """JSON as Python writes it, NaN and all."""
    return json.dumps(plain).encode("utf-8", "surrogatepass")


def resealed(content: bytes) -> bytes:
    """A ZIP file whose stored entries have the checksum of what they hold by now."""
    changed, at = bytearray(content), 0
    while (at := content.find(b"PK\x03\x04", at)) >= 0:
        if at + 30 <= len(content):
            method, size = struct.unpack_from("<8xH8xI", content, at)[0:2]
            name, extra = struct.unpack_from("<26xHH", content, at)
            begin = at + 30 + name + extra
            if method == 0 and begin + size <= len(content):
                struct.pack_into("<I", changed, at + 14, zlib.crc32(content[begin : begin + size]))
        at += 4
    return bytes(changed)

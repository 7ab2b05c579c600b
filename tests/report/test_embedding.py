"""Data within the page: comes back as it was, in the same bytes, and ends no element."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from typing import Any

import pytest

from workflow_lib.report.figures.html import address, embedded


def unpacked(element: str) -> Any:
    (packed,) = re.findall(r"<script [^>]*>([^<]*)</script>", element)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_data_comes_back_and_cannot_end_its_element():
    data = {"b": ["</script><script>alert(1)//", "°", None], "a": 1.5}
    element = embedded("cells", data)
    assert 'id="data-cells"' in element
    assert element.count("<") == 2
    assert unpacked(element) == data


def test_the_same_data_are_the_same_bytes_in_any_order_at_any_time():
    element = embedded("x", {"a": 1, "b": 2})
    assert element == embedded("x", {"b": 2, "a": 1})
    header = base64.b64decode(element.split(">")[1].split("<")[0])[:10]
    # Neither flags, as of a name, nor a time.
    assert header[3:8] == bytes(5)


@pytest.mark.parametrize("name", ["", "A", 'x" onload="', "a b", "1a"])
def test_a_name_that_is_no_plain_word_is_refused(name):
    with pytest.raises(ValueError, match="id"):
        embedded(name, {})


def test_what_is_no_json_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        embedded("x", math.nan)


def test_a_cells_address_holds_nothing_that_an_address_could_end_with():
    assert address("h200/gpt3 #1&<") == "#cell=h200%2Fgpt3%20%231%26%3C"

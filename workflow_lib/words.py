"""Writes numbers with their nouns, for messages, plans and pages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def power_of_ten(number: float) -> str:
    """A large number by its power of ten: "10¹²", "1.5·10¹³"."""
    digits, _, exponent = f"{number:e}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    factor = f"{float(digits):g}"
    return f"10{raised}" if factor == "1" else f"{factor}·10{raised}"

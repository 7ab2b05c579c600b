"""Runs in the interpreter of a Calculon checkout: cases from stdin, seconds to stdout, as JSON.

Calculon (github.com/calculon-ai/calculon, SC'23) cannot be installed as a package, so its directory
is the working directory.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def main() -> int:
    """Compute the time of each case, which has ``application``, ``execution`` and ``system``; for a
    case without a time, write the reason."""
    from calculon.llm import Llm, System  # type: ignore[import-not-found]

    def time(case: dict[str, Any]) -> float | str:
        try:
            model = Llm(Llm.Application(case["application"]), logging.getLogger())
            system = System(case["system"])
            model.compile(system, Llm.Execution.from_json(case["execution"]))
            model.run(system)
        except (Llm.Error, AssertionError) as error:
            return str(error) or "an assertion of Calculon does not hold"
        return float(model.get_total_time())

    json.dump([time(case) for case in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

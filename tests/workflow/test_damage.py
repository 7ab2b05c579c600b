"""What was made from other files and is damaged, with the modification time that it had, is made
again by the same command, byte for byte; what cannot be made again is named.
"""

import os

import pytest

from tests.programs import well
from tests.workflow.conftest import invoke, made

pytestmark = [pytest.mark.slow, pytest.mark.kills]


def cut(content):
    return content[: len(content) // 2]


def emptied(content):
    return b""


def flipped(content):
    return (
        content[: len(content) // 2]
        + bytes([content[len(content) // 2] ^ 1])
        + content[len(content) // 2 + 1 :]
    )


RUN, PROFILED, VIEW = "cells/*/*/*/run1", "cells/*/*/*/run0", "sweeps/tiny"
#: each file that is made from others, as a pattern below results/
PRODUCTS = (
    *(f"{RUN}/{name}" for name in ("cell.json", "summary.json", "steps.parquet", "series.parquet")),
    *(f"{PROFILED}/{name}" for name in ("cell.json", "traces/kernels.parquet")),
    f"{PROFILED}/traces/traces.parquet",
    *(f"{VIEW}/{name}.parquet" for name in ("plan", "runs", "cells", "gpus", "nodes", "overhead")),
    *(f"{VIEW}/{name}.parquet" for name in ("steps", "series", "kernels", "traces", "unused_gpus")),
    *(f"{VIEW}/{name}" for name in ("figures/*.svg", "figures/*.pdf", "report.html")),
    *(f"comparisons/*/{name}" for name in ("comparison.parquet", "comparison.html", "figures/*")),
)


def damage(checkout, pattern, harm):
    """Harm every file that fits, and leave their times as they were."""
    found = sorted((checkout.directory / "results").glob(pattern))
    found = [path for path in found if not path.name.startswith(".")]
    assert found, pattern
    for path in found:
        before = path.stat()
        path.write_bytes(harm(path.read_bytes()))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return found


@pytest.mark.parametrize(
    "harm",
    [flipped, *(pytest.param(each, marks=pytest.mark.kills) for each in (cut, emptied))],
)
def test_all_that_was_made_is_made_again_where_all_is_damaged(compared, harm):
    before = made(compared)
    found = [path for pattern in PRODUCTS for path in damage(compared, pattern, harm)]
    known = {path.relative_to(compared.directory / "results").as_posix() for path in found}
    assert {name for name in before if "other" not in name} - known == {
        name for name in before if name.endswith(".sh")
    }, "a product that no pattern finds"
    well(invoke(compared))
    assert made(compared) == before
    assert "Nothing to be" in invoke(compared).stderr


@pytest.mark.kills
@pytest.mark.parametrize("pattern", PRODUCTS)
def test_each_product_is_made_again_where_it_alone_is_damaged(compared, pattern):
    before = made(compared)
    found = damage(compared, pattern, flipped)
    again = well(invoke(compared))
    for path in found:
        # Figures of a page are one product, which is named as a whole.
        product = path.parent if path.parent.name == "figures" else path
        assert f"{product.relative_to(compared.directory)} was damaged" in again.stderr or (
            f"{product.relative_to(compared.directory)} is damaged" in again.stderr
        )
    assert made(compared) == before
    assert not list((compared.directory / "results").rglob("attempts")), "something trained again"


def test_a_dry_run_says_what_is_damaged_and_removes_nothing(compared):
    before = made(compared)
    (table,) = damage(compared, f"{VIEW}/runs.parquet", flipped)
    harmed = made(compared)
    said = well(compared.snakemake("all", "--dry-run"))
    told = said.stdout + said.stderr
    assert f"{table.relative_to(compared.directory)} is damaged" in told
    assert made(compared) == harmed
    assert invoke(compared).returncode == 0
    assert made(compared) == before

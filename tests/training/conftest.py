"""What several tests of training share: tokens to train on, and programs that run on ranks."""

import functools
from pathlib import Path

import pytest

from tests.training.ranks import HAS_COMPILER, launch
from workflow_lib.trainers.native.tokenize import byte_tokenizer, tokenize


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    source = Path(__file__).parents[2] / "workflow_lib" / "formulas.py"
    tokenize(directory, [str(source)], byte_tokenizer())
    return directory / "tokens.json"


@pytest.fixture(scope="module")
def on_ranks(request, tmp_path_factory):
    """Gives what each rank returned for a cell of the module's CELLS, from a program (``ranks``).

    The first call for a world size starts all its cells that selected tests have as their ``name``,
    or that have one rank. Those that are compiled are apart, as they take minutes.
    """
    selected = {
        item.callspec.params.get("name")
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }

    @functools.cache
    def start(program, world_size, compiled, *arguments, **environment):
        cells = {
            name: one
            for name, one in request.module.CELLS.items()
            if (one.degrees.world_size, one.training.compile) == (world_size, compiled)
            and (name in selected or world_size == 1)
        }
        directory = tmp_path_factory.mktemp(f"world{world_size}")
        return launch(program, cells, directory, *arguments, environment=environment)

    def of_cell(program, name, *arguments, **environment):
        one = request.module.CELLS[name]
        if one.training.compile and not HAS_COMPILER:
            pytest.skip("torch compiles for CPUs with a C++ compiler, and this machine has none")
        world_size = one.degrees.world_size
        results = start(program, world_size, one.training.compile, *arguments, **environment)
        assert isinstance(results, dict), results
        for rank in results[name]:
            assert not isinstance(rank, dict) or "error" not in rank, rank["error"]
        return results[name]

    return of_cell

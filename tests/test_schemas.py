"""The schemas that editors check configuration files by: each file names its own, and keeps it."""

import json

import jsonschema
import pytest

from docs import schemas
from workflow_lib.yaml_files import read_yaml

FILES = sorted(schemas.CONFIG.rglob("*.yaml"))


def schema(name):
    return json.loads((schemas.DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))


def first_line(path):
    """What a file under config/ begins with, for editors."""
    inside = path.relative_to(schemas.CONFIG)
    name = next(name for name, (files, _) in schemas.KINDS.items() if inside.match(files))
    return f"# yaml-language-server: $schema={'../' * (len(inside.parts) - 1)}schemas/{name}.json"


def schema_of(path):
    """As an editor finds it: by the file's first line, from the file's own directory."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    mark = "# yaml-language-server: $schema="
    assert first.startswith(mark), f"{path}: write as its first line: {first_line(path)}"
    return json.loads((path.parent / first.removeprefix(mark)).read_text(encoding="utf-8"))


def test_every_kind_of_file_has_a_schema_and_files():
    found = {pattern: [*schemas.CONFIG.glob(pattern)] for pattern, _ in schemas.KINDS.values()}
    assert all(found.values())
    assert sorted(path for paths in found.values() for path in paths) == FILES


@pytest.mark.parametrize("name", schemas.KINDS)
def test_a_schema_is_one(name):
    jsonschema.Draft7Validator.check_schema(schema(name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(schemas.CONFIG)))
def test_a_shipped_file_is_what_its_schema_says(path):
    assert schema_of(path)["title"] == f"Triptych: {first_line(path).split('/')[-1][:-5]}"
    jsonschema.validate(read_yaml(path), schema_of(path), jsonschema.Draft7Validator)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("sweeps/smoke.yaml", {"platforms": "h200"}, "'h200' is not of type 'array'"),
        ("sweeps/smoke.yaml", {"repeat": 3}, "'repeat' was unexpected"),
        ("sweeps/smoke.yaml", {"matrix": [{"models": "x", "gpus": "16"}]}, "'16' is not valid"),
        ("models/llama3-8b.yaml", {"num_hidden_layers": 32}, "was unexpected"),
        ("models/llama3-8b.yaml", {"layers": 0}, "minimum of 0"),
        ("platforms/h200.yaml", {"scheduler": "pbs"}, "'pbs' is not one of"),
        ("platforms/h200.yaml", {"partition": "a b"}, "'a b' is not valid"),
        ("data/synthetic.yaml", {"kind": "random"}, "'random' is not one of"),
        ("config.yaml", {"sweeps": "demo"}, "'demo' is not of type 'array'"),
        ("claims.yaml", {"claims": [{"id": "c1"}]}, "'c1' does not match"),
        ("meters.yaml", {"gpus": {"GPU-1": {"gain": -0.046}}}, "'source' is a required property"),
    ],
)
def test_an_editor_marks_what_loading_refuses(file, change, said):
    path = schemas.CONFIG / file
    errors = jsonschema.Draft7Validator(schema_of(path)).iter_errors(read_yaml(path) | change)
    assert any(said in error.message for error in errors)


def test_a_key_is_explained_where_it_is_written():
    entry = schema("sweep")["$defs"]["MatrixEntry"]["properties"]
    assert entry["tp"]["description"] == "Tensor-parallel degree."
    assert all(field.get("description") or "$ref" in field for field in entry.values())

"""The whole workflow with hostile text in its configuration, secrets in its environment, and under
a strict umask; one run of it, and one more of the cell that failed.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
import yaml

from tests.hostile import FOR_A_SHELL, HOSTILE, NAMES, canaries
from tests.report.pages import Page
from tests.workflow.conftest import SNAKEMAKE, Checkout, copy
from workflow_lib import results
from workflow_lib.config import Invocation
from workflow_lib.study import ConfigError, checked

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: where users keep secrets; the last three would be recorded, but for what they are called or hold
SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MY_PAT", "SMTP_PASSWORD")
RECORDED_SECRETS = ("TORCH_HUB_TOKEN", "NCCL_API_KEY")


def taken(value: str) -> bool:
    """Whether a directory may be called so, in the configuration."""
    plain = {"config_directory": "config", "results_directory": f"a/{value}", "sweeps": ["tiny"]}
    try:
        checked("", Invocation, plain)
    except ConfigError:
        return False
    return "%" not in value  # which submitit reads as numbers of a job: refused there


#: every such name, one directory within the other
RESULTS = "results/" + "/".join(name for name in NAMES if taken(name))
CONFIG = 'con\'fig $(touch canary) "`touch canary`"'
DESCRIPTION = (
    "-- <script>alert('x')</script> $(touch canary) `touch canary` {sweep} {0} \\frac$x$ '; \""
)
TEXTS = {
    "-rf.txt": "hyphen",
    "$(touch canary).txt": "command",
    "it's; touch canary #.txt": "quote",
    "{wildcards.data} {0} {{x}}.txt": "braces",
    '日本 \\n".txt': "more",
}
TOKENIZER = "$(touch canary) {wildcards} 'tokenizer'.json"


@dataclass(frozen=True)
class Ran:
    """What two invocations left and said."""

    checkout: Checkout
    secrets: Mapping[str, str]
    output: str
    #: of the second one, which only tried the failed cell again
    second_began_unix_s: float

    @property
    def results(self) -> Path:
        return self.checkout.directory / RESULTS


def snakemake(checkout: Checkout, umask: int, environment: Mapping[str, str]) -> str:
    """Run the workflow, of which one cell fails; returns what it printed."""
    done = subprocess.run(
        [str(SNAKEMAKE), "--profile", "profiles/local"],
        cwd=checkout.directory,
        env=os.environ | dict(environment),
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nonfinite_loss" in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    import tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    checkout = copy(tmp_path_factory.mktemp("hostile") / "it's a $(touch canary) checkout")
    root = checkout.directory
    tokenizer = tokenizers.Tokenizer(
        WordLevel({"<eos>": 0, "<unk>": 1, "word": 2}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(root / TOKENIZER))
    for name, text in TEXTS.items():
        (root / name).write_text(f"{text} word\n" * 200, encoding="utf-8")
    block = {"models": "gpt3-tiny", "gpus": 1, "dp": 1}
    checkout.write_sweep(
        description=DESCRIPTION,
        data="mine",
        matrix=[block, {**block, "models": "llama3-tiny", "learning_rate": 1.0e30}],
    )
    platform = root / "config" / "platforms" / "local.yaml"
    changes = {
        "description": DESCRIPTION,
        "telemetry": "simulated",
        "gpu": "<script>alert('x')</script> $(touch canary) ; \"' $x$",
        "environment": {
            f"VALUE_{number}": value
            for number, value in enumerate(HOSTILE)
            if value not in FOR_A_SHELL and not set(value) & {"\0", "\ud800"}
        },
    }
    platform.write_text(yaml.safe_dump(yaml.safe_load(platform.read_text()) | changes))
    data = {"description": DESCRIPTION, "kind": "text", "tokenizer": TOKENIZER, "sources": [*TEXTS]}
    (root / "config" / "data" / "mine.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    shutil.copytree(root / "config", root / CONFIG)
    chosen = {"results_directory": RESULTS, "config_directory": CONFIG, "sweeps": ["tiny"]}
    (root / "config" / "config.yaml").write_text(yaml.safe_dump(chosen), encoding="utf-8")

    given = {name: secrets.token_hex(16) for name in (*SECRETS, *RECORDED_SECRETS)}
    address = {"NCCL_PROXY": f"http://ada:{secrets.token_hex(16)}@proxy"}
    environment = given | address | {"NCCL_DEBUG": "WARN"}
    first = snakemake(checkout, 0o027, environment)
    began = time.time()
    second = snakemake(checkout, 0o077, environment)
    secret = {**given, "NCCL_PROXY": address["NCCL_PROXY"].split(":")[2].split("@")[0]}
    return Ran(checkout, secret, first + second, began)


def test_text_is_text_from_the_configuration_to_the_report(ran):
    root = ran.checkout.directory
    # Below the results' names are the names of others' canaries, which are directories.
    assert canaries(root) == []
    assert {path.name for path in root.parent.iterdir()} == {root.name}
    assert json.loads((ran.results / "data/mine/tokens.json").read_text())["sources"] == [*TEXTS]

    runs = {path.parts[-3]: path for path in (ran.results / "cells/local").glob("*/*/run1")}
    outcome = json.loads((runs["gpt3-tiny"] / "outcome.json").read_text())
    assert outcome["outcome"] == "completed"
    failure = json.loads((runs["llama3-tiny"] / "failure.json").read_text())
    assert failure["outcome"] == "nonfinite_loss"
    error = json.loads((runs["llama3-tiny"] / "errors/rank0.json").read_text())
    assert error["traceback"].startswith("Traceback")

    source = (ran.results / "sweeps/tiny/report.html").read_text(encoding="utf-8")
    page = Page(source)
    assert [tag for tag, _ in page.tags].count("script") == 2, "the page's own, and its data"
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert DESCRIPTION in page.text
    assert "simulated <script>alert('x')</script> $(touch canary)" in page.text


def test_the_status_of_a_run_says_where_it_is_without_moving_the_cursor(ran):
    command = [sys.executable, "-m", "workflow_lib.status", "--results", str(ran.results)]
    run = {"cwd": ran.checkout.directory, "capture_output": True, "text": True, "check": True}
    table = subprocess.run(command, **run).stdout
    assert table.replace("\n", "").isprintable()
    lines = subprocess.run([*command, "--json"], **run).stdout.splitlines()
    assert all(line.isascii() for line in lines)
    found = [json.loads(line) for line in lines]
    assert sorted(each["outcome"] for each in found) == ["completed", "nonfinite_loss"]
    directory = results.run_directory(ran.results, found[0]["cell"], 1)
    assert Path(found[0]["directory"]) == directory


def test_secrets_of_the_environment_are_in_no_file_and_no_message(ran):
    searched = 0
    for path in ran.checkout.directory.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":  # which is compressed
            content += pl.read_parquet(path, glob=False).write_json().encode()
        if path.name == "report.html":
            (packed,) = re.findall(rb'id="data-cells">([^<]+)<', content)
            content += gzip.decompress(base64.b64decode(packed))
            assert b"workflow_lib" in content, "what the pages of cells show"
        for name, secret in ran.secrets.items():
            assert secret.encode() not in content, f"{name} is in {path}"
        searched += path.is_relative_to(ran.results)
    assert searched > 50
    for name, secret in ran.secrets.items():
        assert secret not in ran.output, name
    # The job had them all the same, and what is no secret is recorded.
    (environment,) = ran.results.glob("cells/local/gpt3-tiny/*/run1/environment.json")
    assert json.loads(environment.read_text())["environment_variables"]["NCCL_DEBUG"] == "WARN"


def test_files_are_open_to_whom_the_umask_lets_in_and_to_nobody_else(ran):
    found = set()
    for path in [ran.results, *ran.results.rglob("*")]:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        dated_back = status.st_mtime < 1e9  # tables after a failure, which both runs write
        later = dated_back or status.st_mtime >= ran.second_began_unix_s
        closed = 0o077 if later else 0o027
        whole = 0o777 if path.is_dir() or path.name == "job.sh" else 0o666
        whole = 0o444 if path.suffix == ".zip" else whole
        if path.is_dir():
            # Its time is that of what was last made in it, not its own.
            assert mode in (0o750, 0o700), path
        else:
            assert mode == whole & ~closed, f"{path} has mode {mode:o}"
        found.add(mode)
    assert found == {0o750, 0o700, 0o640, 0o600, 0o440}


@pytest.mark.kills
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("results_directory", "{cell}", "results_directory: '{cell}' holds a brace"),
        ("platform", "\x1b[31m", "no platform is called '\\x1b[31m'"),
        ("sweeps", ["$(touch canary)"], "no sweep is called '$(touch canary)'"),
    ],
)
def test_what_rules_cannot_carry_is_refused_before_anything_is_made(ran, name, value, said):
    path = ran.checkout.directory / "config" / "config.yaml"
    usual = path.read_text(encoding="utf-8")
    path.write_text(yaml.safe_dump(yaml.safe_load(usual) | {name: value}), encoding="utf-8")
    # What a profile says would win over the file.
    profile = ["--config", f"platform={value}"] if name == "platform" else []
    done = ran.checkout.snakemake(*profile, "--dry-run")
    path.write_text(usual, encoding="utf-8")
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert said in output
    assert "Traceback" not in output
    assert canaries(ran.checkout.directory) == []


@pytest.mark.kills
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("results_directory=-rf", "results_directory: '-rf' .*hyphen"),
        ("sweep=[tiny]", "sweep: unknown key; .*'sweeps'"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_refused_alike(ran, given, said):
    done = ran.checkout.snakemake("--dry-run", "--config", given)
    assert done.returncode != 0
    assert re.search(f"config.yaml or --config: {said}", done.stdout + done.stderr)

"""What looks like a secret, what a terminal gets, whose directories are trusted; and that no code
of the project unpickles a file or has a shell read a value."""

import ast
import os
import re
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from workflow_lib import safety
from workflow_lib.config import Container, Platform
from workflow_lib.study import ConfigError, checked
from workflow_lib.trainers.native import __main__ as training

_SECRETS = (
    *("HF_TOKEN", "hf_token", "GITHUB_TOKEN_2", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
    *("WANDB_API_KEY", "WANDB_APIKEY", "MY_PAT", "PASSWD", "MYSQL_PWD", "SMTP_PASSWORD"),
    *("SSH_PASSPHRASE", "GOOGLE_APPLICATION_CREDENTIALS", "PROXY_AUTH", "SESSION_COOKIE"),
    *("TORCH_HUB_TOKEN", "APPTAINER_DOCKER_PASSWORD", "JWT", "ENCRYPTION_KEY", "PASS"),
)
_OTHERS = (
    *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "TOKENS_PER_STEP", "NCCL_DEBUG", "PATH"),
    *("LD_LIBRARY_PATH", "KEYBOARD", "PATTERN", "COMPASS", "AUTHOR", "OMP_NUM_THREADS"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_IB_PKEY", "BYPASS_CACHE", "PASSES"),
)


@pytest.mark.parametrize("name", [*_SECRETS, *_OTHERS])
def test_names_of_secrets_are_told_from_others(name):
    assert safety.names_secret(name) == (name in _SECRETS)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("http://ada:lovelace@proxy:3128", True),
        ("docker://ada:lovelace@registry/image:tag", True),
        ("see postgresql+psycopg://ada:x@db/y", True),
        ("docker://nvcr.io#nvidia/pytorch:25.01-py3", False),
        ("docker://ada@nvcr.io#nvidia/pytorch:25.01-py3", False),
        ("http://proxy:3128/a@b", False),
        ("ada:lovelace@host", False),
        ("http://host:80/?q=a:b@c", False),
        ("https://:x@proxy", True),
        ("http://ada:love:lace@proxy", True),
        ("://ada:lovelace@proxy", False),
        # Nobody's configuration keeps the reader busy for minutes.
        ("a" * 600_000, False),
        ("http://" + ":" * 600_000, False),
        ("http://" * 100_000, False),
        ("", False),
    ],
)
def test_an_address_with_a_password_is_known(text, holds):
    assert safety.holds_password(text) is holds


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach ada:hunter2-hunter2@host:3128",
        "cannot reach https://ada:hunter2-hunter2@host/",
        "GET https://bucket/x?X-Amz-Signature=hunter2-hunter2&y=1 failed",
        "GET https://blob/x?sv=1&sig=hunter2-hunter2 failed",
        "GET https://host/x?token=hunter2-hunter2 failed",
        "curl --api-key hunter2-hunter2 failed",
        "NCCL_KEY=hunter2-hunter2 is odd",
        "WANDB_API_KEY: 'hunter2-hunter2'",
        "Authorization: Bearer hunter2-hunter2",
        "the value hunter2-of-the-environment is wrong",
    ],
)
def test_credentials_are_struck_out_of_texts(text):
    hide = safety.hiding({"HF_TOKEN": "hunter2-of-the-environment", "PWD": "/home/ada/secrets"})
    assert "hunter2" not in hide(text)
    assert safety.HIDDEN in hide(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=100000000 of 4 GPUs at 12:30:00",
        "rank 0: step 12345678: loss 3.5",
        "key: layers.0.attention.weight in /home/ada/secrets",
        "a" * 600_000 + "@",
        ":" * 600_000 + "@",
        "a:b," * 150_000 + "@",
    ],
)
def test_other_texts_stay_as_they_are(text):
    hide = safety.hiding({"PWD": "/home/ada/secrets"})
    assert hide(text) == text


def test_a_password_in_a_platforms_file_is_refused_without_repeating_it():
    address = "docker://ada:lovelace@registry/image"
    with pytest.raises(ConfigError, match=r"image: .* password") as refused:
        checked("site.yaml", Container, {"runtime": "pyxis", "image": address})
    assert "lovelace" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY .* address") as refused:
        checked("site.yaml", Platform, {"environment": {"HTTPS_PROXY": address}})
    assert "lovelace" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünïcødé and 日本語", "plain text, ünïcødé and 日本語"),
        ("two\nlines", "two\nlines"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("over\rwritten\b", "over\\rwritten\\x08"),
        ("\x9b31m\x85", "\\x9b31m\\x85"),
        ("\u202edesrever\u2028", "\\u202edesrever\\u2028"),
        (os.fsdecode(b"\xff"), "\\udcff"),
    ],
)
def test_a_terminal_gets_nothing_that_it_obeys(text, shown):
    assert safety.printable(text) == shown
    assert shown.replace("\n", "").isprintable()


def test_a_directory_is_made_for_its_user_alone_and_found_again(tmp_path):
    directory = safety.private_directory(tmp_path, "cache")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert safety.private_directory(tmp_path, "cache") == directory
    assert safety.private_directory(tmp_path, "other") != directory


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_enter_is_not_taken(tmp_path, mode):
    (tmp_path / "cache-0").mkdir()
    (tmp_path / "cache-0").chmod(mode)
    assert safety.private_directory(tmp_path, "cache").stat().st_mode & 0o777 == 0o700


def test_a_link_to_a_directory_of_ones_own_is_not_followed(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "cache-0").symlink_to(tmp_path / "mine")
    assert not safety.private_directory(tmp_path, "cache").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_user_who_comes_first_blocks_nobody(tmp_path):
    (tmp_path / "cache-0").mkdir(mode=0o700)
    os.chown(tmp_path / "cache-0", 65534, 65534)
    taken = safety.private_directory(tmp_path, "cache")
    assert taken.stat().st_uid == 0
    assert safety.private_directory(tmp_path, "cache") == taken


# ------------------------------------------------------------------------------------- the code

#: modules that make objects, or code, out of bytes
_PICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
#: these unpickle whatever comes; pools, whose pipes only their own processes hold, do not
_PICKLES |= {"multiprocessing.connection", "multiprocessing.managers"}
#: calls that unpickle, or have text executed; ``weights_only=True`` makes torch.load safe
_CALLS = {
    *("torch.load", "torch.jit.load", "torch.hub.load", "pl.DataFrame.deserialize"),
    *("pandas.read_pickle", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("eval", "exec", "compile", "__import__", "jinja2.Template"),
}


def offences(source):
    """What a module does that nothing here may do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from (
            f"imports {name}"
            for name in names
            if any(f"{name}.".startswith(f"{forbidden}.") for forbidden in _PICKLES)
        )
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in _CALLS and options.get("weights_only") != "True":
                yield f"calls {called}"
            for option in ("shell", "allow_pickle"):
                if options.get(option, "False") != "False":
                    yield f"calls {called} with {option}"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "def f():\n    import joblib.externals",
        "from multiprocessing.connection import Listener",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "yaml.load(text, Loader=yaml.UnsafeLoader)",
        "subprocess.run(text, shell=True)",
        "eval(text)",
    ],
)
def test_code_that_executes_what_it_reads_is_found(source):
    assert list(offences(source))


def test_other_code_is_not():
    safe = "import json, yaml\nyaml.safe_load(text)\nre.compile(x)\nnp.load(path)\n"
    assert not list(offences(safe + "torch.load(p, weights_only=True)\nmodule.compile()\n"))


def test_nothing_is_unpickled_and_no_value_is_code():
    # torch's own compiler does, in a directory of this user alone: see below.
    found = {
        str(path.relative_to(ROOT)): offence
        for directory in ("workflow_lib", "profiles", "docs")
        for path in sorted((ROOT / directory).rglob("*.py"))
        for offence in offences(path.read_text(encoding="utf-8"))
    }
    assert found == {}


def test_compiled_layers_are_kept_where_nobody_else_can_put_any(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    # Set and deleted, so that it is gone again after the test.
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "1")
    monkeypatch.delenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    training._keep_compiled_code_private()
    kept = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0"
    assert kept.parent == tmp_path
    assert kept.stat().st_mode & 0o777 == 0o700
    # What a site sets, it has thought about.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/own")
    training._keep_compiled_code_private()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/scratch/own"


def test_submitit_is_given_commands_and_no_functions():
    """Functions it pickles into the directory of logs, and unpickles what lies there afterwards."""
    used = {
        found
        for path in (ROOT / "workflow_lib").rglob("*.py")
        for found in re.findall(
            r"submitit\.(\w+)|executor\.(\w+)", path.read_text(encoding="utf-8")
        )
    }
    assert {name for pair in used for name in pair if name} <= {
        *("local", "helpers", "LocalExecutor", "update_parameters", "_submit_command")
    }

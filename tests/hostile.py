"""Text that a shell, Slurm, Snakemake, a page or a terminal could take for more than text."""

from __future__ import annotations

from pathlib import Path

#: what a shell would complete: no variable and no path of the configuration may hold it
FOR_A_SHELL = ("~", "~root", "$HOME", "${IFS}", "a${IFS}b", "$IFS$9")

# fmt: off
HOSTILE = (
    "with space", " leading space", "trailing space ", "tab\there",
    "it's", 'say "hello"', "'", '"', "''", "a'; touch canary; '", 'a"; touch canary; "', "'\"'\"'",
    "$(touch canary)", '"$(touch canary)"', "'$(touch canary)'", "`touch canary`",
    "a;touch canary", "a; touch canary #", "a && touch canary", "a || touch canary",
    "a | touch canary", "a & touch canary &",
    "> canary", "a > canary", "< canary", "<(touch canary)",
    "new\nline", "a\ntouch canary\n", "\n#SBATCH --partition=canary\n", "#SBATCH --wrap=canary",
    "a\r\ntouch canary", "carriage\rreturn", "# comment", "a #comment",
    "-", "-rf", "--help", "-c 'touch canary'", "--output=canary",
    "*", "?[a-z]", "{a,b}", "~", "~root", "%j", "%A_%a",
    "$HOME", "${IFS}", "a${IFS}b", "$IFS$9", "$$", "$((1+1))", "!", "!!", "a!b",
    "back\\slash", "\\", "trailing\\", "\\n",
    "null\0byte", "escape\x1b[31m", "bell\x07", "delete\x7f",
    "ünïcødé", "日本語", "\u2028separator", "\u202eoverride", "zero\u200bwidth",
    "{{ 7 * 7 }}", "{% raw %}", "=", "a=b", "(subshell)", "<<EOF", "$'\\x41'",
    "\x9b31mC1 escape", "\x85next line", "\u2066isolate", "lone \ud800 surrogate",
    "{wildcards.cell}", "{{double}}", "{0.__class__}", "%s %(name)s %n",
    "<script>alert('canary')</script>", "<img src=x onerror=alert(1)>", "]]><!--",
    "!!python/object/apply:os.system ['touch canary']", "&anchor", "=cmd|' /C calc'!A0", "",
)
# fmt: on
# What a file's name can be.
NAMES = [value for value in HOSTILE if value and not set(value) & {"\0", "/", "\ud800"}]


def canaries(directory: Path) -> list[Path]:
    """Files that only an executed value can have made."""
    return [path for path in directory.rglob("canary*") if path.is_file()]

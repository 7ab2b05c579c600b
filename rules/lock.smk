# Snakemake's lock outlives a Snakemake that is killed. That of a dead one of this host is lifted, so
# that the same command goes on.
import atexit

from snakemake.logging import logger

from workflow_lib import lock_holders
from workflow_lib.records.whole_files import error_text


def settle_lock():
    """Say who this is before Snakemake locks, and lift a lock that only dead ones left."""
    if not workflow.is_main_process:
        return
    snakemake, own = Path(".snakemake"), lock_holders.this_process()
    dry = workflow.output_settings.dryrun
    if not dry:
        path = lock_holders.announce(snakemake.absolute(), own)
        atexit.register(path.unlink, missing_ok=True)
    found = lock_holders.examine(snakemake, own)
    if found.message and found.stale:
        done = "without --dry-run its lock is lifted" if dry else "its lock is lifted"
        logger.warning(f"{found.message}; {done}")
    elif found.message and not dry:
        logger.warning(found.message)
    if not dry:
        for each in found.stale:
            each.unlink(missing_ok=True)


try:
    settle_lock()
except OSError as error:
    raise WorkflowError(
        f"{error_text(error)}: whose lock this directory has cannot be told"
    ) from None

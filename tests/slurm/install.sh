#!/bin/sh
# Install what tests/slurm/cluster.py runs: Slurm, its accounting daemon, MariaDB and munge; and
# bindfs, for a view of files that lags.
# Exit status: 0 when all is there, 3 when this script cannot install it, apt's own otherwise.
set -eu

packages="slurm-wlm slurmdbd mariadb-server munge bindfs"

present() {
    for program in slurmctld slurmd slurmdbd sbatch sacct mariadbd mariadb-install-db munged; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || return 1
    done
}

if present; then
    echo "Slurm is installed."
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "Slurm is not installed; as root on Debian or Ubuntu run: apt-get install $packages" >&2
    exit 3
fi

# Packages must not start daemons for the whole machine: the tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086  # one word for each package
apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages
present
echo "Slurm is installed."

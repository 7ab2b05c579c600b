#!/bin/sh
# Install what the tests in this directory run: Chromium, and pdftotext to read what it prints.
# Exit status: 0 when all is there, 3 when this script cannot install it, apt's own otherwise.
set -eu

packages="chromium poppler-utils"

present() {
    for program in chromium pdftotext; do
        command -v "$program" >/dev/null || return 1
    done
}

if present; then
    echo "Chromium is installed."
    exit 0
fi
# Ubuntu's package of this name only brings the snap, which reads no file that a test writes to /tmp.
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || ! grep -qx 'ID=debian' /etc/os-release; then
    echo "Chromium or pdftotext is not installed; as root on Debian run: apt-get install $packages" >&2
    exit 3
fi

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086  # one word for each package
apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages
present
echo "Chromium is installed."

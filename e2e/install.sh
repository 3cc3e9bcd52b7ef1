#!/bin/sh
# Installs the pinned agent CLIs and MCP clients the end-to-end tests drive
# into e2e/npm, and links the programs into e2e/npm/bin. Doing it again costs
# nothing while the lock is the same. Needs npm; brings its own Node.
#
# No package's install script runs: what they would download comes from the
# lock as well, with its digest, as one package for each system.
set -eu

root=$(cd "$(dirname "$0")/npm" && pwd)
cd "$root"

say() { printf 'e2e/install.sh: %s\n' "$*" >&2; }

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) system=linux-x64 ;;
Linux-aarch64 | Linux-arm64) system=linux-arm64 ;;
*)
	say "the end-to-end tests have pinned programs for Linux on x86-64 and arm64 only, not $(uname -s) on $(uname -m)"
	exit 1
	;;
esac

if command -v sha256sum >/dev/null 2>&1; then
	digest=$(cat package.json package-lock.json "$0" 2>/dev/null | sha256sum | cut -d' ' -f1)
else
	digest=$(cat package.json package-lock.json "$0" 2>/dev/null | shasum -a 256 | cut -d' ' -f1)
fi
stamp=node_modules/.drawbridge-installed
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ]; then
	exit 0
fi

if ! command -v npm >/dev/null 2>&1; then
	say "npm is not on the PATH; install Node.js (any version from 18) to get it"
	exit 1
fi

# Two installs at once would undo each other. mkdir is the lock that every
# system has.
lock=.installing
tries=0
until mkdir "$lock" 2>/dev/null; do
	tries=$((tries + 1))
	if [ "$tries" -gt 600 ]; then
		say "another install has held e2e/npm/$lock for ten minutes; remove it if none is running"
		exit 1
	fi
	sleep 1
done
trap 'rmdir "$lock"' EXIT
trap 'exit 130' INT TERM
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ]; then
	exit 0
fi

# An interrupted npm ci leaves a folder that looks complete: the stamp is
# written last.
say "installing the pinned programs (about 700 MB, once)"
npm ci --ignore-scripts --engine-strict=false --loglevel=error >&2

libc=
if [ "$system" != "" ] && ls /lib/ld-musl-* >/dev/null 2>&1 && ! ls /lib*/ld-linux-* /lib/*/ld-linux-* >/dev/null 2>&1; then
	libc=-musl
fi
rm -rf bin
mkdir bin
ln -s "../node_modules/@anthropic-ai/claude-code-$system$libc/claude" bin/claude
ln -s "../node_modules/node-$system/bin/node" bin/node
ln -s ../node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js bin/mcp-inspector

for program in claude node; do
	if ! version=$("bin/$program" --version </dev/null 2>&1); then
		say "bin/$program does not start: $version"
		exit 1
	fi
	say "$program $version"
done
printf '%s\n' "$digest" >"$stamp"

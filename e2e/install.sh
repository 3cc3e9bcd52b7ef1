#!/bin/sh
# Installs the pinned agent CLIs and MCP clients the end-to-end tests drive
# into e2e/npm, and links the programs into e2e/npm/bin. Doing it again costs
# nothing while the lock is the same. Needs npm; brings its own Node.
#
# No package's install script runs: what they would download comes from the
# lock as well, with its digest, as one package for each system.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/npm"

say() { printf 'e2e/install.sh: %s\n' "$*" >&2; }

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) system=linux-x64 ;;
Linux-aarch64 | Linux-arm64) system=linux-arm64 ;;
*)
	say "the end-to-end tests have pinned programs for Linux on x86-64 and arm64 only, not $(uname -s) on $(uname -m)"
	exit 1
	;;
esac

digest=$(cat package.json package-lock.json "$here/install.sh" | sha256sum | cut -d' ' -f1)
stamp=node_modules/.drawbridge-installed
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ]; then
	exit 0
fi

if ! command -v npm >/dev/null 2>&1; then
	say "npm is not on the PATH; install Node.js (any version from 18) to get it"
	exit 1
fi

# Two installs at once would undo each other.
exec 9>.install.lock
flock 9
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ]; then
	exit 0
fi

# An interrupted npm ci leaves a folder that looks complete: the stamp is
# written last.
say "installing the pinned programs (about 700 MB, once)"
npm ci --ignore-scripts --engine-strict=false --loglevel=error >&2

rm -rf bin
mkdir bin
ln -s "../node_modules/@anthropic-ai/claude-code-$system/claude" bin/claude
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

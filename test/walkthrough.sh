#!/bin/bash
# The first steps of each kind of user: install below a prefix, a C program, a C program with an event loop, a Rust
# program with async events, a provider from the template, uninstall. Needs a Rust toolchain, a C compiler and
# pkg-config.
#
# Usage: test/walkthrough.sh [DIRECTORY]. The workspace is built in its target directory; all other files are created
# below DIRECTORY. Without DIRECTORY they are in a temporary directory that is removed at the end.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work"
[ $# -gt 0 ] || trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

step() { echo "walkthrough: $*"; }

step "an administrator installs below a prefix and lists the adapters"
(cd "$root" && cargo --quiet xtask install --debug --prefix "$prefix" >"$work/install.log")
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib DAT_OVERRIDE=$prefix/etc/dat.conf
mkdir -p -m 700 "$work/run"
export DAPL_DIR=$work/run
"$prefix/bin/datinfo" list | grep -q sm0

step "a C programmer compiles and runs the first program"
# shellcheck disable=SC2046
cc "$root/test/c/first.c" -o "$work/first" $(pkg-config --cflags --libs dat)
"$work/first" sm0 | grep "messages of up to"

step "a C programmer waits in epoll"
# shellcheck disable=SC2046
cc "$root/test/c/epoll.c" -o "$work/epoll" $(pkg-config --cflags --libs dat)
"$work/epoll" sm0 127.0.0.1 | grep "epoll: OK"

step "a Rust programmer awaits events"
mkdir -p "$work/rust/src"
cat >"$work/rust/Cargo.toml" <<MANIFEST
[package]
name = "walkthrough"
version = "0.1.0"
edition = "2024"

[dependencies]
async-io = "2"
udapl = { path = "$root/dat/udapl", features = ["async"] }

[workspace]
MANIFEST
cp "$root/dat/udapl/examples/udapl-async.rs" "$work/rust/src/main.rs"
# Uses the dependency versions of the workspace, so that a machine that has built the workspace needs no network.
cp "$root/Cargo.lock" "$work/rust/Cargo.lock"
(cd "$work/rust" && cargo --quiet run -- sm0) | grep "1000 messages"

step "an author of a provider starts from the template"
(cd "$root" && cargo --quiet xtask new-provider wire --path "$work/wire" >"$work/provider.log")
(cd "$work/wire" && cargo --quiet build)
echo "wire0 u1.2 nonthreadsafe default $work/wire/target/debug/libdaplwire.so dapl.1.2 \"\" \"\"" >"$work/wire.conf"
DAT_OVERRIDE=$work/wire.conf "$work/epoll" wire0 127.0.0.1 | grep "epoll: OK"

step "the administrator removes what was installed"
(cd "$root" && cargo --quiet xtask uninstall --prefix "$prefix" >"$work/uninstall.log")
[ ! -e "$prefix/lib/libdat.so.1" ]
step "OK"

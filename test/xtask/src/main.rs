//! The project's commands. `cargo xtask --help` lists them; README shows `demo` and `test`.
//!
//! Each does all its own set-up (`setup`) and goes through the tree that an install would make (`tree`). Nothing of the
//! product depends on this package, and it knows the product only by its files.

mod bench;
mod conformance;
mod coverage;
mod deb;
mod demo;
mod guest;
mod install;
mod iperf;
mod json;
mod layout;
mod man;
mod net;
mod proofs;
mod quiet;
mod reference;
mod release;
mod report;
mod setup;
mod suites;
mod tree;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  demo                  run dtest, server and client, over the sm provider; succeeds only if all data checked
  test                  run all suites that need no guest, no root and no package build
  test --rest [--required]
                        run what that leaves out: deb, report, loom, threads, net, rxe; --required: fail where something
                        would be skipped for lack of namespaces, guests or packages
  test --all [--required]
                        both
  test SUITE [ARGS]     run one suite; ARGS go to cargo test; `test --list` names the suites
  test conformance [--provider NAME] [ARGS]
                        the conformance suite over a provider (sm0, usnic0); `test conformance list` names its cases
  test coverage [SUITE] [ARGS]
                        the same, instrumented, and how many lines of the object layer ran, room by room
  test rxe [--required] [CHECK ...]
                        the verbs provider on soft-RoCE, in one guest (a kernel that has it, in qemu) and between two; all
                        checks, or those with such a name; of conformance::X the cases called so; --required: a machine
                        on which that cannot be done fails instead of skipping it
  test net [--required] [CHECK ...]
                        the usnic provider between two network namespaces: loss, MTUs, rates, ends, an address that moves;
                        all checks, or those with such a name; --required: as above. For root
  guest [--limit SECONDS] PROGRAM [ARGS]
                        runs a program of this machine in such a guest, with the staged libraries
  bench [--quick]       sm, usnic and verbs below, one after the other, then one page of all they found: charts, tables and
                        commands, in bench/report.html of the target directory; what failed is named there, and the rest
                        is measured; --quick: a little of each
  bench report [--from DIRECTORY] [--output FILE]
                        makes that page of the results that are there, without measuring
  bench sm [--quick] [S1 .. S9] [evds] [mpi] [connections] [connects] [memory] [senders] [latency] [bandwidth]
                        measure the sm provider beside its peers: everything, which takes some minutes, or these; --quick:
                        a little of it; writes bench/sm.json and, with latency or bandwidth, bench/sm.svg in the target
                        directory
  bench usnic [--quick] [U1 .. U7] [evds] [mpi] [connections] [connects] [memory] [cpu] [latency] [bandwidth] [loss]
                        the same for the usnic provider beside sockperf, iperf3 and libfabric; what is about loss (U7, loss)
                        needs network namespaces, so root; writes bench/usnic.json and bench/usnic.svg
  bench evd             measure what thousands of idle endpoints cost who polls their EVD; writes bench/evd.json
  bench verbs [--clock] [--quick] [V1 .. V14] [latency] [bandwidth] [connects]
                        measure the verbs provider beside perftest and the 2.0 reference in a guest, by instructions, or
                        by time; everything, or these; --quick: once; writes bench/verbs.json and, with a curve,
                        bench/verbs.svg (or verbs-clock.json and verbs-clock.svg)
  setup                 install what the suites need
  build [--debug]       lay out libraries, headers, programs and a dat.conf as installed, and say where
  man [DIRECTORY]       write the manual pages below a directory: man/ in the target directory
  install [--prefix P] [--destdir D] [--sysconfdir C] [--libdir L] [--debug]
                        install below P (/usr/local), packaged below D; dat.conf is read from C (P/etc), libraries go to L
                        (P/lib); what is there of others' stays
  deb [--output D] [--twice] [--debug]
                        Debian packages, in deb/ of the target directory; --twice: build again elsewhere, and compare all
                        bytes; --debug: of what the tests have built
  uninstall [--prefix P] [--destdir D]
                        take away what install has put there

demo, test, guest, bench, build and install bring the system packages they need, or say which. Builds go where cargo's own go.
";

/// What a command answers: nothing more to say, or why it failed.
type Result<T = ()> = std::result::Result<T, String>;

fn main() -> ExitCode {
    // The suites' helpers panic with what a compiler or a program said: that alone is worth showing here.
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        eprintln!("xtask: {}", text.unwrap_or("failed"));
    }));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["demo"] => demo::run(),
        ["test", "coverage", ref rest @ ..] => coverage::run(rest),
        ["test", "conformance", ref rest @ ..] => conformance::run(rest),
        ["test", "rxe", ref rest @ ..] => guest::rxe::run(rest),
        ["test", "net", ref rest @ ..] => net::run(rest),
        ["test", ref rest @ ..] => suites::run(rest),
        ["guest", ref rest @ ..] => guest::command::run(rest),
        ["bench", "report", ref rest @ ..] => bench::page(rest),
        ["bench", "sm", ref rest @ ..] => bench::sm(rest),
        ["bench", "usnic", ref rest @ ..] => bench::usnic(rest),
        ["bench", "evd"] => bench::evd(),
        ["bench", "verbs", ref rest @ ..] => bench::verbs(rest),
        ["bench", "all", ref rest @ ..] | ["bench", ref rest @ ..] => bench::all(rest),
        ["setup"] => setup::run(),
        ["build"] => tree::build(dapl_test::stage::Profile::Dist).map(|tree| tree.announce()),
        ["build", "--debug"] => tree::build(dapl_test::stage::Profile::Dev).map(|tree| tree.announce()),
        ["man", ref rest @ ..] => man::run(rest),
        ["install", ref rest @ ..] => install::install(rest),
        ["deb", ref rest @ ..] => deb::run(rest),
        ["uninstall", ref rest @ ..] => install::uninstall(rest),
        ["help" | "--help" | "-h", ..] => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

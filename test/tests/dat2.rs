//! DAT 2.0 programs over the real `libdat2.so.2` and this project's providers; and a process with both versions of
//! libdat.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use dapl_test::run::{self, Run, Sandbox};
use dapl_test::stage::{Profile, Stage, stage, workspace};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Registry with lines for both DAT versions; both libdats read the same file.
const BOTH_VERSIONS: &str = "\
sm0 u1.2 nonthreadsafe default libdaplsm.so.1 dapl.1.2 \"\" \"\"
sm0 u2.0 nonthreadsafe default libdaplsm.so.1 dapl.2.0 \"\" \"\"
usnic0 u1.2 nonthreadsafe default libdaplusnic.so.1 dapl.1.2 \"127.0.0.1\" \"\"
usnic0 u2.0 nonthreadsafe default libdaplusnic.so.1 dapl.2.0 \"127.0.0.1\" \"\"
";

#[test]
fn an_adapter_is_opened_by_its_line_of_2_0() {
    let stage = stage(Profile::Dev);
    let (sandbox, program) = (Sandbox::new(&stage, Some(BOTH_VERSIONS)), run::program_2(&stage, "test/c/first.c"));
    for adapter in ["sm0", "usnic0"] {
        sandbox.start(&program, &[adapter]).finish(TIMEOUT).expect_success("messages of up to ");
    }
}

#[test]
fn built_in_registry_opens_adapters_of_2_0() {
    let stage = stage(Profile::Dev);
    let program = run::program_2(&stage, "test/c/first.c");
    Sandbox::new(&stage, None).start(&program, &["sm0"]).finish(TIMEOUT).expect_success("messages of up to ");
}

#[test]
fn sources_of_1_2_compile_and_run_against_2_0() {
    let stage = stage(Profile::Dev);
    for (source, arguments) in [
        ("test/c/selfconnect.c", &["sm0"][..]),
        ("test/c/selfconnect.c", &["usnic0"]),
        ("test/c/crossed.c", &["sm0", "100", "127.0.0.1"]),
        ("test/c/crossed.c", &["usnic0", "100", "127.0.0.1"]),
    ] {
        let (sandbox, program) = (Sandbox::new(&stage, Some(BOTH_VERSIONS)), run::program_2(&stage, source));
        sandbox.start(&program, arguments).finish(TIMEOUT).expect_success("OK");
    }
}

/// Two processes; the receiver has three threads, each with a CNO, or all on the descriptor of one CNO.
#[test]
fn descriptors_of_cnos_lose_no_wake_up_under_epoll() {
    let stage = stage(Profile::Dev);
    let program = run::program_2(&stage, "test/c/cno_fd.c");
    for adapter in ["sm0", "usnic0"] {
        for owner in ["own", "shared"] {
            for trigger in [&[][..], &["edge"]] {
                let sandbox = Sandbox::new(&stage, Some(BOTH_VERSIONS));
                let arguments = [&[adapter, "3", "10000", owner], trigger].concat();
                sandbox.start(&program, &arguments).finish(TIMEOUT).expect_success("cno_fd: OK, 10000 messages");
            }
        }
    }
}

#[test]
fn valgrind_finds_nothing_in_a_program_of_2_0() {
    if !run::has_tool("valgrind") {
        println!("skipped: valgrind is missing; install the Debian package valgrind");
        return;
    }
    let stage = stage(Profile::Dev);
    let program = run::program_2(&stage, "test/c/selfconnect.c");
    let options = [
        "--quiet",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
        "--errors-for-leak-kinds=definite,indirect",
        "--error-exitcode=99",
    ];
    for adapter in ["sm0", "usnic0"] {
        let sandbox = Sandbox::new(&stage, Some(BOTH_VERSIONS));
        let mut command = sandbox.command("valgrind", &options);
        command.arg(&program).args([adapter, "3"]);
        Run::start(command).finish(TIMEOUT).expect_success("OK, 3 rounds");
    }
}

/// Two libraries, one for each DAT version, like parts of a program that were built at different times. Compiled
/// once, since another test of this process may have loaded them.
fn halves(stage: &Stage) -> &'static [PathBuf; 2] {
    static HALVES: OnceLock<[PathBuf; 2]> = OnceLock::new();
    HALVES.get_or_init(|| {
        let directory = stage.root.join("programs");
        std::fs::create_dir_all(&directory).expect("the stage is writable");
        let source = workspace().join("test/c/half.c");
        let adapted = workspace().join("test/c/dat20");
        [("half1", "-ldat", &[][..]), ("half2", "-ldat2", &[adapted.as_path()])].map(|(name, library, includes)| {
            let path = directory.join(format!("{name}.{}.so", std::process::id()));
            stage.compile_with(&[library], includes, &path, &[&source], &["-shared", "-fPIC"]);
            path
        })
    })
}

fn meet(adapter: &str) {
    let stage = stage(Profile::Dev);
    let [first, second] = halves(&stage);
    let (sandbox, program) = (Sandbox::new(&stage, Some(BOTH_VERSIONS)), run::program(&stage, "test/c/both.c"));
    let parts = [adapter, first.to_str().unwrap(), second.to_str().unwrap()];
    Run::start(sandbox.command(&program, &parts)).finish(TIMEOUT).expect_success("both: OK");
}

#[test]
fn one_process_uses_1_2_and_2_0_over_sm() {
    meet("sm0");
}

#[test]
fn one_process_uses_1_2_and_2_0_over_usnic() {
    meet("usnic0");
}

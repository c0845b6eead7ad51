//! The registry through the real `libdat.so.1`: selection, loading and finalisation of providers, refused opens,
//! invalid arguments and handles, threads and forks.
//!
//! Each case is a separate process (`test/c/registry_probe.c`), since libdat reads files and environment once. The
//! providers are variants of `test/c/dummy_provider.c`, some of them faulty. Like foreign providers, they do not use
//! libdat's hook, unless compiled with `HOOKED`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use case::{Case, probe, stage};
use refusals::{NAME_NOT_REGISTERED, NOT_LOADED};

#[path = "registry/case.rs"]
mod case;
#[path = "registry/files.rs"]
mod files;
#[path = "registry/refusals.rs"]
mod refusals;
#[path = "registry/version_2.rs"]
mod version_2;
#[path = "registry/work.rs"]
mod work;

const FINE_LINE: &str = "fine u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"eth0 0\" \"\"\n";

#[test]
fn a_provider_is_initialised_once_and_finished_after_the_last_close() {
    let case = Case::new("life", FINE_LINE).provider("libfine.so.1", &[]);
    let answer = case.run("open fine 1 2 0 open fine 1 2 0 close 0 0 close-pointer 1 1 close 1 0 open fine 1 2 0");
    answer.quiet().says(&[
        "provider: init fine 1.2 nonthreadsafe (eth0 0)",
        "provider: open fine 8",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 1",
        "provider: open fine 8",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 2",
        "provider: close 0",
        "close: 0x00000000 DAT_SUCCESS ",
        "provider: close 1",
        "provider: fini fine 1.2 nonthreadsafe",
        "close: 0x00000000 DAT_SUCCESS ",
        "close: 0x8005000b DAT_INVALID_HANDLE DAT_INVALID_HANDLE_IA",
        "provider: init fine 1.2 nonthreadsafe (eth0 0)",
        "provider: open fine 8",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 3",
    ]);
}

#[test]
fn refused_close_leaves_the_ia_open() {
    let case = Case::new("refused-close", FINE_LINE).provider("libfine.so.1", &["REFUSES_GRACEFUL"]);
    let answer = case.run("open fine 1 2 0 close 0 1 close 0 7 close 0 0 remove fine 1 2 0");
    let tail: Vec<_> = answer.out.lines().skip(4).filter(|line| !line.starts_with("provider: close")).collect();
    assert_eq!(
        tail,
        [
            "close: 0x8007004f DAT_INVALID_STATE DAT_INVALID_STATE_IA_IN_USE",
            "close: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
            "provider: fini fine 1.2 nonthreadsafe",
            "close: 0x00000000 DAT_SUCCESS ",
            "remove: 0x800a0062 DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED",
        ]
    );
}

#[test]
fn a_provider_without_an_ia_or_a_fini_does_not_crash() {
    let case = Case::new("open-null", FINE_LINE).provider("libfine.so.1", &["OPEN_NULL", "NO_FINI"]);
    let answer = case.run("open fine 1 2 0 open fine 1 2 0");
    assert_eq!(answer.out.matches("open: 0x80040000 DAT_INTERNAL_ERROR \n").count(), 2, "{}", answer.out);
    assert_eq!(answer.out.matches("provider: init").count(), 2);
}

#[test]
fn nearest_later_minor_version_is_chosen_and_passed_to_the_provider() {
    let conf = "m u1.4 threadsafe default {}/libm.so.1 d.1.4 \"\" \"\"\nm u1.3 threadsafe default {}/libm.so.1 d.1.3 \"\" \"\"\n";
    let case = Case::new("minor", conf).provider("libm.so.1", &[]);
    let answer = case.run("open m 1 2 0");
    assert_eq!(answer.out.lines().next(), Some("provider: init m 1.3 threadsafe ()"));
}

#[test]
fn first_loadable_of_equal_lines_is_used() {
    let conf = "e u1.2 threadsafe default {}/libabsent.so.1 d.1.2 \"one\" \"\"\n\
                e u1.2 threadsafe default {}/libno.so.1 d.1.2 \"two\" \"\"\n\
                e u1.2 threadsafe default {}/libyes.so.1 d.1.2 \"three\" \"\"\n\
                e u1.2 threadsafe default {}/libyes.so.1 d.1.2 \"four\" \"\"\n\
                f u1.2 threadsafe default {}/libfails.so.1 d.1.2 \"one\" \"\"\n\
                f u1.2 threadsafe default {}/libyes.so.1 d.1.2 \"two\" \"\"\n";
    let case = Case::new("chain", conf).provider("libno.so.1", &["NO_INIT"]).provider("libyes.so.1", &[]);
    let case = case.provider("libfails.so.1", &["OPEN_CODE=0x80120060"]);
    let answer = case.run("open e 1 2 0 open e 1 2 0 close 0 0 close 1 0 list 8 open f 1 2 0");
    assert!(answer.reason().starts_with("cannot open \"f\": {}/dat.conf:5: {}/libfails.so.1 returned "));
    assert_eq!(answer.out.matches("init e 1.2 threadsafe (three)").count(), 1);
    assert_eq!(answer.out.matches("fini e").count(), 1);
    assert_eq!(answer.out.matches("init e").count(), 1, "{}", answer.out);
    assert!(answer.out.contains("count 2\n- e 1.2 1\n- f 1.2 1\n"), "a key is listed twice");
    // A provider that refuses ends the search: silently using another adapter would be worse.
    assert!(
        answer.out.ends_with(
            "open: 0x80120060 DAT_INVALID_ADDRESS DAT_INVALID_ADDRESS_UNREACHABLE\nleft ia (nil) evd (nil)\n"
        )
    );
}

#[test]
fn a_program_may_register_itself() {
    let case = Case::new("self", "");
    let answer = case.run(
        "open self 1 2 0 self self 1 2 0 self self 1 2 7 self self 1 2 1 self self 2 0 0 list 8 open self 1 2 0 \
         unself self 1 2 0 close 0 0 unself self 1 2 0 unself self 1 2 0 open self 1 2 0",
    );
    answer.says(&[
        NAME_NOT_REGISTERED,
        "left ia (nil) evd (nil)",
        "self: 0x00000000 DAT_SUCCESS ",
        "self: 0x00000000 DAT_SUCCESS ",
        "self: 0x80100000 DAT_PROVIDER_ALREADY_REGISTERED ",
        "self: 0x00000000 DAT_SUCCESS ",
        "list: 0x00000000 DAT_SUCCESS ",
        "count 0",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 1",
        "unself: 0x80110000 DAT_PROVIDER_IN_USE ",
        "close: 0x00000000 DAT_SUCCESS ",
        "unself: 0x00000000 DAT_SUCCESS ",
        "unself: 0x800a0062 DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 2",
    ]);
}

#[test]
fn provider_init_can_open_other_names_but_not_the_initialized_one() {
    let conf = "again u1.2 threadsafe default {}/libagain.so.1 d.1.2 \"\" \"\"\n\
                other u1.2 threadsafe default {}/libother.so.1 d.1.2 \"\" \"\"\n\
                built u1.2 threadsafe default {}/libbuilt.so.1 d.1.2 \"\" \"\"\n\
                circle u1.2 threadsafe default {}/libcircle.so.1 d.1.2 \"\" \"\"\n\
                fine u1.2 threadsafe default {}/libfine.so.1 d.1.2 \"\" \"\"\n";
    let case = Case::new("reentrant", conf).provider("libfine.so.1", &[]);
    let case = case.provider("libagain.so.1", &["INIT_AGAIN"]).provider("libother.so.1", &["INIT_OPENS=\"fine\""]);
    let case = case.provider("libbuilt.so.1", &["CONSTRUCTOR_OPENS=\"fine\""]);
    let case = case.provider("libcircle.so.1", &["CONSTRUCTOR_OPENS=\"circle\""]);
    let opened = |name: &str, line: &str| {
        let answer = case.run(&format!("open {name} 1 2 0"));
        assert!(answer.out.contains(line), "{line}: {}", answer.out);
        assert!(answer.out.contains("\nopen: 0x00000000"), "{}", answer.out);
    };
    opened("again", "provider: open of again from init: 0x80070000");
    opened("other", "provider: open of fine from init: 0x00000000");
    opened("built", "provider: open of fine from constructor: 0x00000000");
    opened("circle", "provider: open of circle from constructor: 0x80070000");
}

#[test]
fn two_provider_inits_that_open_each_other_do_not_deadlock() {
    let conf = "a u1.2 threadsafe default {}/liba.so.1 d.1.2 \"\" \"\"\nb u1.2 threadsafe default {}/libb.so.1 d.1.2 \"\" \"\"\n";
    let case = Case::new("circle", conf)
        .provider("liba.so.1", &["INIT_OPENS=\"b\"", "INIT_SLEEPS=50"])
        .provider("libb.so.1", &["INIT_OPENS=\"a\"", "INIT_SLEEPS=50"]);
    case.run("threads 3 a b"); // a deadlock triggers the probe's alarm
}

#[test]
fn libdat_never_prints_to_stdout() {
    let case = Case::new("stdout", FINE_LINE).provider("libfine.so.1", &[]);
    let case = case.with("DAT_DBG_TYPE", "0xff").with("DAT_DBG_DEST", "1");
    let answer = case.run("open fine 1 2 0 close 0 0 open x 1 2 0");
    assert!(!answer.out.contains("libdat"), "{}", answer.out);
    for line in
        ["records read: 1, from {}/dat.conf", "dat_provider_init for \"fine\"", "is registered", "dat_ia_openv of"]
    {
        assert!(answer.err.contains(line), "{line}: {}", answer.err);
    }
}

#[test]
fn dat_conf_and_environment_are_read_at_the_first_lookup() {
    let case = Case::new("late", FINE_LINE);
    let late = case.environment[0].1.clone();
    let case = case.bare().with("DAT_OVERRIDE", "/nonexistent/dat.conf");
    let answer = case.run(&format!("self self 1 2 0 set DAT_OVERRIDE {late} list 4 set DAT_OVERRIDE /dev/null list 4"));
    assert_eq!(answer.quiet().out.matches("count 1\n- fine 1.2 0").count(), 2);
}

#[test]
fn unreadable_dat_override_gives_an_empty_registry() {
    let case = Case::new("override", "");
    let missing = case.bare().with("DAT_OVERRIDE", "/nonexistent/dat.conf");
    let answer = missing.run("list 4");
    answer.says(&["list: 0x00000000 DAT_SUCCESS ", "count 0"]);
    assert_eq!(
        answer.reason(),
        "cannot read /nonexistent/dat.conf (DAT_OVERRIDE): No such file or directory; no adapter name is known from \
         dat.conf; correct DAT_OVERRIDE or this file"
    );
    let empty = missing.bare().with("DAT_OVERRIDE", "");
    assert!(empty.run("list 4").out.ends_with("count 0\n"));
    let directory = empty.bare().with("DAT_OVERRIDE", "/proc/self");
    assert!(directory.run("list 4").reason().contains("not a regular file"));
}

#[test]
fn provider_list_is_cut_to_its_capacity_and_returns_the_full_count() {
    let conf = "two u2.0 threadsafe default l d.2.0 \"\" \"\"\n\
                b u1.2 threadsafe default l d.1.2 \"\" \"\"\n\
                hidden u1.2 threadsafe nondefault l d.1.2 \"\" \"\"\n\
                a u1.2 nonthreadsafe default l d.1.2 \"\" \"\"\n\
                b u1.2 threadsafe default other d.1.2 \"\" \"\"\n\
                b u1.2 nonthreadsafe default l d.1.2 \"\" \"\"\n";
    let case = Case::new("list", conf);
    case.run("list 0 list 2 list 4 list 600").quiet().says(&[
        "list: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "count 4",
        "list: 0x00000000 DAT_SUCCESS ",
        "count 2",
        "- b 1.2 1",
        "- a 1.2 0",
        "list: 0x00000000 DAT_SUCCESS ",
        "count 4",
        "- b 1.2 1",
        "- a 1.2 0",
        "- b 1.2 0",
        "- two 2.0 1",
        "list: 0x00000000 DAT_SUCCESS ",
        "count 4",
        "- b 1.2 1",
        "- a 1.2 0",
        "- b 1.2 0",
        "- two 2.0 1",
    ]);
}

#[test]
fn invalid_arguments_return_their_numbers_and_write_nothing() {
    let two = "a u1.2 threadsafe default l d.1.2 \"\" \"\"\nb u1.2 threadsafe default l d.1.2 \"\" \"\"\n";
    Case::new("arguments", two).run("bad-arguments").quiet().says(&[
        "open null name: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "open endless name: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "open 256 bytes: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "open null ia: 0x8005000b DAT_INVALID_HANDLE DAT_INVALID_HANDLE_IA",
        "add null table: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "add null info: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
        "add without close: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "add endless name: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
        "remove null table: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "remove null info: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
        "list null count: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
        "list null list: 0x80060026 DAT_INVALID_PARAMETER DAT_INVALID_ARG3",
        "count -7",
        "list negative: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "count 2",
        "list size query: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "count 2",
        "list with a hole: 0x80060026 DAT_INVALID_PARAMETER DAT_INVALID_ARG3",
        "count 2 name aaa",
        "strerror both null: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
        "strerror null major: 0x00000000 DAT_SUCCESS ",
        "strerror null minor: 0x00000000 DAT_SUCCESS ",
        "strerror unknown: 0x80060024 DAT_INVALID_PARAMETER DAT_INVALID_ARG1",
        "translate into null: 0x80060025 DAT_INVALID_PARAMETER DAT_INVALID_ARG2",
    ]);
}

#[test]
fn arbitrary_handle_values_do_not_crash_libdat_calls() {
    let case = Case::new("handles", FINE_LINE).provider_linked("libfine.so.1", &["HOOKED"], &["-ldat"]);
    case.run("bad-handles").says(&["survived"]);
    let answer = case.run("open fine 1 2 0 bad-handles objects 0 close 0 0 bad-handles");
    assert!(answer.out.contains("provider: add_arena 0"), "{}", answer.out);
    assert_eq!(answer.out.matches("survived").count(), 2);
    assert!(!answer.out.contains(" with 0x"), "{}", answer.out);
}

#[test]
fn libdat_hook_reports_ia_numbers_and_the_last_refused_open() {
    let conf = format!("{FINE_LINE}x u1.2 threadsafe nondefault l d.1.2 \"\" \"\"\n");
    let case = Case::new("hook", &conf).provider("libfine.so.1", &[]);
    let answer = case.run("open fine 1 2 0 open x 1 2 0 hook 0");
    let length = format!("cannot open \"x\": {}/dat.conf:2: the line ", case.directory.display()).len()
        + "is marked nondefault; write default instead".len();
    let tail: Vec<_> = answer.out.lines().skip(6).collect();
    assert_eq!(
        tail[..4],
        [
            "hook: 0x00000000 DAT_SUCCESS ",
            "other version: 0x8005000b DAT_INVALID_HANDLE DAT_INVALID_HANDLE_IA",
            "number 1 unknown (nil)",
            &format!("length {length} nothing {length}"),
        ]
    );
    assert!(tail[4].starts_with("cannot open \"x\": ") && tail[5] == "cannot ", "{tail:?}");
}

#[test]
fn calls_with_handles_of_a_foreign_provider_reach_its_objects() {
    let case = Case::new("objects", FINE_LINE).provider("libfine.so.1", &[]);
    let answer = case.run("open fine 1 2 0 objects 0");
    assert!(
        answer.out.ends_with(
            "translate: 0x00000000 DAT_SUCCESS \n\
             translate again: 0x00000000 DAT_SUCCESS \n\
             same 1 number 1\n\
             query by pointer: 0x00000000 DAT_SUCCESS \n\
             set context: 0x00000000 DAT_SUCCESS \n\
             get context: 0x00000000 DAT_SUCCESS \n\
             ia type: 0x00000000 DAT_SUCCESS \n\
             type 3 context 1\n\
             pz create: 0x00000000 DAT_SUCCESS \n\
             pz type: 0x00000000 DAT_SUCCESS \n\
             type 6\n\
             pz without a slot: 0xffff0000 DAT_NOT_IMPLEMENTED \n\
             pz free: 0x00000000 DAT_SUCCESS \n\
             pz as ia: 0x8005000b DAT_INVALID_HANDLE DAT_INVALID_HANDLE_IA\n"
        ),
        "{}",
        answer.out
    );
}

#[test]
fn a_thread_that_waits_can_be_cancelled() {
    let case = Case::new("cancel", FINE_LINE).provider("libfine.so.1", &[]);
    let answer = case.run("open fine 1 2 0 cancel 0 close 0 0");
    assert!(answer.out.contains("cancelled 1"), "{}", answer.out);
}

#[test]
fn provider_not_linked_to_libdat_finds_a_libdat_opened_with_rtld_local() {
    let case = Case::new("local", FINE_LINE).provider("libfine.so.1", &[]);
    let answer = case.run_program(&probe("local_probe"), "fine");
    assert!(answer.quiet().out.ends_with("open: 0x00000000\nleft\n"), "{}", answer.out);
}

#[test]
fn library_name_without_slash_is_also_searched_beside_libdat() {
    let conf = "beside u1.2 threadsafe default libbeside.so.1 d.1.2 \"\" \"\"\n\
                slash u1.2 threadsafe default ./libbeside.so.1 d.1.2 \"\" \"\"\n";
    let case = Case::new("beside", conf).provider("libbeside.so.1", &[]);
    let copy = case.directory.join("libdat.so.1");
    fs::copy(stage().lib.join("libdat.so.1"), &copy).unwrap();
    let case = case.with("LD_PRELOAD", copy.to_str().unwrap());
    assert!(case.run("open beside 1 2 0").quiet().out.contains("open: 0x00000000"));
    assert!(case.run("open slash 1 2 0").out.contains(NOT_LOADED), "a library path with a slash was searched");
}

#[test]
fn opens_from_many_threads_call_fini_as_often_as_init() {
    let conf = format!("{FINE_LINE}slow u1.2 threadsafe default {{}}/libslow.so.1 d.1.2 \"\" \"\"\n");
    let case = Case::new("threads", &conf).provider("libfine.so.1", &[]).provider("libslow.so.1", &["INIT_SLEEPS=1"]);
    let answer = case.run("threads 200 fine slow");
    assert_eq!(answer.err, "failures 0\n");
    for name in ["fine", "slow"] {
        let calls = |what: &str| answer.out.matches(&format!("provider: {what} {name} ")).count();
        assert!(calls("init") >= 1 && calls("init") == calls("fini"), "{} {}", calls("init"), calls("fini"));
    }
}

#[test]
fn concurrent_runs_of_the_registry_suite_use_separate_directories() {
    let (one, other) = (Case::new("same", FINE_LINE), Case::new("same", FINE_LINE));
    assert_ne!(one.directory, other.directory);
    let (place, name) = (other.directory.clone(), std::process::id().to_string());
    assert!(place.file_name().is_some_and(|place| place.to_string_lossy().contains(&name)), "{}", place.display());
    drop(one);
    assert!(other.directory.join("dat.conf").exists(), "the directory of the second case was removed");
    drop(other);
    assert!(!place.exists());
}

#[test]
fn forked_child_can_open_a_provider() {
    let case = Case::new("fork", FINE_LINE).provider("libfine.so.1", &["INIT_SLEEPS=1"]);
    let answer = case.run("fork-open fine");
    assert_eq!(answer.err, "good children 40 failures 0\n");
}

#[test]
fn set_uid_program_ignores_dat_override() {
    let case = Case::new("set-uid", FINE_LINE);
    let program = case.directory.join("probe");
    fs::copy(probe("registry_probe"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let as_other_user = |words: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups"]).arg(&program).args(words.split(' '));
        let output = command.envs(case.environment.iter().cloned()).output();
        output.map_or(String::new(), |output| String::from_utf8(output.stdout).unwrap())
    };
    if as_other_user("secure") != "secure 1\n" {
        println!("skipped: set-uid programs have no effect here (not root, or mounted nosuid)");
        return;
    }
    let listed = as_other_user("list 8");
    assert!(listed.starts_with("list: 0x00000000") && !listed.contains("fine"), "{listed}");
}

#[test]
fn without_any_file_the_builtin_registry_is_used() {
    let files = ["/etc/dat.conf", "/etc/rdma/dat.conf", "/etc/rdma/compat-dapl/dat.conf", "/etc/dat.conf.d"];
    if files.iter().any(|file| Path::new(file).exists()) {
        println!("skipped: this machine has a dat.conf, so the built-in registry is not used");
        return;
    }
    let case = Case::new("built-in", "").bare();
    let answer = case.run("list 200");
    let lines: Vec<_> = answer.quiet().out.lines().collect();
    assert_eq!(lines[0], "list: 0x00000000 DAT_SUCCESS ");
    assert_eq!(lines[2..4], ["- sm0 1.2 0", "- usnic0 1.2 0"]);
    assert!(lines.contains(&"- usnic-lo 1.2 0"), "{lines:?}");
    let of_machine = |line: &&str| line.starts_with("- usnic-") || line.starts_with("- verbs-");
    assert!(lines[4..].iter().all(of_machine), "{lines:?}");
}

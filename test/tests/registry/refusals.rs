//! Refused opens: the return code, and the message on stderr. Also limits of the number of messages, and messages about
//! environment variables.
//!
//! Part of `tests/registry.rs`. Each cause has a case, which compares the complete message line.

use std::fs;
use std::process::Command;

use crate::case::Case;

pub(crate) const NAME_NOT_REGISTERED: &str = "open: 0x800a0062 DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED";
const MAJOR_NOT_FOUND: &str = "open: 0x800a0063 DAT_PROVIDER_NOT_FOUND DAT_MAJOR_NOT_FOUND";
const MINOR_NOT_FOUND: &str = "open: 0x800a0064 DAT_PROVIDER_NOT_FOUND DAT_MINOR_NOT_FOUND";
const THREAD_SAFETY_NOT_FOUND: &str = "open: 0x800a0065 DAT_PROVIDER_NOT_FOUND DAT_THREAD_SAFETY_NOT_FOUND";
pub(crate) const NOT_LOADED: &str = "open: 0x800a0000 DAT_PROVIDER_NOT_FOUND ";

/// Opens an adapter that must be refused with this code and this message on stderr.
#[track_caller]
fn refused(case: &Case, words: &str, code: &str, reason: &str) {
    let answer = case.run(words);
    let lines: Vec<_> = answer.out.lines().filter(|line| !line.starts_with("provider: ")).collect();
    assert_eq!(lines, [code, "left ia (nil) evd (nil)"]);
    assert_eq!(answer.reason(), reason);
}

#[test]
fn six_causes_of_open_failure_have_distinct_codes_and_reasons() {
    let conf = "a u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"\" \"\"\n\
                b u2.0 threadsafe default {}/libfine.so.1 dapl.2.0 \"\" \"\"\n\
                c u1.1 threadsafe default {}/libfine.so.1 dapl.1.1 \"\" \"\"\n\
                d u1.2 threadsafe default {}/libabsent.so.1 dapl.1.2 \"\" \"\"\n";
    let case = Case::new("six", conf).provider("libfine.so.1", &["OPEN_CODE=0x80030003"]);
    // b and c are for other versions and the library of d is missing, so only a is suggested.
    let known = "add a line for it, or open one of these: a";
    refused(
        &case,
        "open x 1 2 0",
        NAME_NOT_REGISTERED,
        &format!("cannot open \"x\": no interface adapter of this name in {{}}/dat.conf (DAT_OVERRIDE); {known}"),
    );
    refused(
        &case,
        "open b 1 2 0",
        MAJOR_NOT_FOUND,
        "cannot open \"b\": {}/dat.conf:2: wanted version 1.2, but this name has only 2.0 (for libdat2); \
         add a line for version 1.2",
    );
    refused(
        &case,
        "open c 1 2 0",
        MINOR_NOT_FOUND,
        "cannot open \"c\": {}/dat.conf:3: wanted version 1.2, but this name has only 1.1; add a line for version 1.2",
    );
    refused(
        &case,
        "open a 1 2 1",
        THREAD_SAFETY_NOT_FOUND,
        "cannot open \"a\": {}/dat.conf:1: a thread-safe provider was requested, but the line says nonthreadsafe; \
         write threadsafe if its library is thread-safe",
    );
    refused(
        &case,
        "open d 1 2 0",
        NOT_LOADED,
        "cannot open \"d\": {}/dat.conf:4: {}/libabsent.so.1: cannot open shared object file: No such file or directory; \
         install that library, or correct lib_path",
    );
    let device = case.run("open a 1 2 0 remove a 1 2 0");
    assert_eq!(
        device.reason(),
        "cannot open \"a\": {}/dat.conf:1: {}/libfine.so.1 returned DAT_INSUFFICIENT_RESOURCES DAT_RESOURCE_DEVICE; \
         set DAPL_DBG_TYPE=0xffff for more messages"
    );
    device.says(&[
        "provider: init a 1.2 nonthreadsafe ()",
        "provider: open a 8",
        "provider: fini a 1.2 nonthreadsafe",
        "open: 0x80030003 DAT_INSUFFICIENT_RESOURCES DAT_RESOURCE_DEVICE",
        "left ia (nil) evd (nil)",
        "remove: 0x800a0062 DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED",
    ]);
}

#[test]
fn open_of_a_name_on_a_dropped_line_names_that_line() {
    let conf = "n u1.2 threadsafe nondefault l dapl.1.2 \"\" \"\"\n\
                k k1.2 threadsafe default l dapl.1.2 \"\" \"\"\n\
                d u1.2 ThreadSafe default l dapl.1.2 \"\" \"\"\n";
    let case = Case::new("absent", conf).with("DAT_DBG_TYPE", "1");
    let why = |name: &str| {
        let answer = case.run(&format!("open {name} 1 2 0"));
        assert!(answer.out.starts_with(NAME_NOT_REGISTERED), "{}", answer.out);
        let line = answer.err.lines().last().unwrap();
        line.strip_prefix(&format!("libdat: cannot open \"{name}\": {{}}/dat.conf:")).unwrap().to_owned()
    };
    assert_eq!(why("n"), "1: the line is marked nondefault; write default instead");
    assert_eq!(why("k"), "2: the line is a kernel (k...) record; write u instead of k");
    assert_eq!(
        why("d"),
        "3: the line was dropped: thread_safety: \"ThreadSafe\"; allowed is threadsafe or nonthreadsafe"
    );
    let diagnostic = case.run("open d 1 2 0").err;
    assert!(
        diagnostic.starts_with(
            "libdat: {}/dat.conf:3:8: thread_safety: \"ThreadSafe\"; allowed is threadsafe or nonthreadsafe; \
             this record is dropped\n"
        ),
        "{diagnostic}"
    );
}

#[test]
fn library_that_is_no_provider_is_rejected_with_the_reason() {
    let line = |library: &str| format!("p u1.2 threadsafe default {{}}/{library} dapl.1.2 \"par\" \"\"\n");
    let refuse = |name: &str, library: &str, defines: &[&str], arguments: &[&str], reason: &str| {
        let case = Case::new(name, &line(library));
        let stub = case.directory.join("stub.c");
        fs::write(&stub, "int dat2_stub;\n").unwrap();
        let stub_library = case.directory.join("libdat2.so.2");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wl,-soname,libdat2.so.2", "-o"]).arg(&stub_library).arg(&stub);
        assert!(cc.status().unwrap().success());
        let arguments: Vec<_> =
            arguments.iter().map(|text| text.replace("{}", case.directory.to_str().unwrap())).collect();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let case = case.provider_linked(library, defines, &arguments);
        refused(
            &case,
            "open p 1 2 0",
            NOT_LOADED,
            &format!("cannot open \"p\": {{}}/dat.conf:1: {{}}/{library} {reason}"),
        );
    };
    refuse(
        "no-init",
        "libp.so.1",
        &["NO_INIT"],
        &[],
        "has no dat_provider_init: it is not a DAT provider; name a provider's library as lib_path",
    );
    refuse(
        "silent",
        "libp.so.1",
        &["SILENT"],
        &[],
        "was loaded, but did not register \"p\" 1.2 threadsafe; see its own message, and check ia_params (\"par\")",
    );
    refuse(
        "wrong-name",
        "libp.so.1",
        &["REGISTER_AS=\"q\""],
        &[],
        "was loaded, but registered \"q\" 1.2 threadsafe instead of \"p\" 1.2 threadsafe; correct the line, or name another library",
    );
    refuse(
        "wrong-version",
        "libp.so.1",
        &["REGISTER_MINOR=1"],
        &[],
        "was loaded, but registered \"p\" 1.1 threadsafe instead of \"p\" 1.2 threadsafe; correct the line, or name another library",
    );
    refuse(
        "two-by-name",
        "libp.so.2",
        &[],
        &[],
        "is a library for libdat2 (.so.2), but the line says u1; name the .so.1 library",
    );
    refuse(
        "two-by-need",
        "libp.so.1",
        &[],
        &["-Wl,--no-as-needed", "{}/libdat2.so.2", "-Wl,-rpath,{}"],
        "needs libdat2.so.2: it implements DAT 2.0 only; name a library for 1.2",
    );
}

#[test]
fn rejected_provider_is_finished_and_unregistered() {
    let conf = "p u1.2 threadsafe default {}/libp.so.1 dapl.1.2 \"\" \"\"\n";
    let case = Case::new("leaves-nothing", conf).provider("libp.so.1", &["REGISTER_AS=\"q\"", "KEEPS"]);
    let answer = case.run("open p 1 2 0 open q 1 2 0 open p 1 2 0 remove q 1 2 1");
    answer.says(&[
        "provider: init p 1.2 threadsafe ()",
        "provider: fini p 1.2 threadsafe",
        NOT_LOADED,
        "left ia (nil) evd (nil)",
        NAME_NOT_REGISTERED,
        "left ia (nil) evd (nil)",
        "provider: init p 1.2 threadsafe ()",
        "provider: fini p 1.2 threadsafe",
        NOT_LOADED,
        "left ia (nil) evd (nil)",
        "remove: 0x800a0062 DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED",
    ]);
}

#[test]
fn each_open_failure_is_logged_once_and_at_most_four() {
    let words = "open a 1 2 0 open a 1 2 0 open b 1 2 0 open c 1 2 0 open d 1 2 0 open e 1 2 0 open f 1 2 0";
    let count = |case: Case| case.run(words).err.lines().map(str::to_owned).collect::<Vec<_>>();
    let usual = count(Case::new("limit", ""));
    assert_eq!(usual.len(), 5, "{usual:?}");
    assert_eq!(usual[4], "libdat: further refusals are not shown; run with DAT_DBG_TYPE=0x3 to see them all");
    assert_eq!(count(Case::new("limit-off", "").with("DAT_DBG_TYPE", "0")).len(), 0);
    assert_eq!(count(Case::new("limit-all", "").with("DAT_DBG_TYPE", "0x3")).len(), 6);
    assert_eq!(count(Case::new("limit-syslog", "").with("DAT_DBG_DEST", "2")).len(), 0);
}

#[test]
fn failed_device_opens_are_logged_up_to_a_limit_and_bad_arguments_are_not() {
    let conf = "a u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"\" \"\"\n";
    let case = Case::new("device-limit", conf).provider("libfine.so.1", &["OPEN_CODE=0x80030003"]);
    let answer = case.run("open a 1 2 0 open a 1 2 0 open b 1 2 0 open c 1 2 0 open d 1 2 0 open e 1 2 0");
    assert_eq!(answer.err.lines().count(), 5, "{}", answer.err);
    let case = Case::new("call", conf).provider("libfine.so.1", &["OPEN_CODE=0x80060025"]);
    case.run("open a 1 2 0").quiet();
}

#[test]
fn dat_dbg_level_bits_are_added_to_dat_dbg_type() {
    let lines = |variables: &[(&'static str, &str)]| {
        let case = Case::new("levels", "");
        let case = variables.iter().fold(case, |case, (name, value)| case.with(name, value));
        case.run("open a 1 2 0").err.lines().count()
    };
    assert_eq!((lines(&[]), lines(&[("DAT_DBG_TYPE", "0")])), (1, 0));
    assert_eq!(lines(&[("DAT_DBG_TYPE", "0"), ("DAT_DBG_LEVEL", "0x20")]), 1, "not one line, for the failed call");
    assert_eq!(lines(&[("DAT_DBG_LEVEL", "0x24")]), 3, "not three lines: the call, the file, the reason");
}

#[test]
fn unknown_variable_is_logged_once_with_the_nearest_name() {
    let case = Case::new("misspelt", "").with("DAT_OVERIDE", "x").with("DAPL_UCM_RETRY", "3");
    let case = case.with("DAPL_SM_UNKNOWN", "1").with("DATA", "2");
    let answer = case.run("list 4 list 4 open a 1 2 0");
    let lines: Vec<_> = answer.err.lines().collect();
    let expected = "libdat: DAT_OVERIDE is not a variable of DAT; the nearest name is DAT_OVERRIDE";
    assert_eq!((lines.len(), lines[0]), (2, expected), "{lines:?}");
    assert_eq!(Case::new("misspelt", "").with("DAT_OVERIDE", "x").with("DAT_DBG_TYPE", "0").run("list 4").err, "");
}

#[test]
fn invalid_number_in_a_variable_is_logged_with_the_default_used() {
    let case = Case::new("bad-number", "").with("DAT_DBG_TYPE", "all").with("DAT_DBG_DEST", "4");
    let err = case.run("open a 1 2 0").err;
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines[0], "libdat: DAT_DBG_TYPE=\"all\" is not a number from 0 to 4294967295; 1 is used");
    assert_eq!(lines[1], "libdat: DAT_DBG_DEST=\"4\" is not a number from 1 to 3; 1 is used");
    assert_eq!(lines.len(), 3, "{lines:?}");
}

#[test]
fn errors_of_a_file_are_limited_to_sixteen_lines() {
    let case = Case::new("flood", &"x u1.2\n".repeat(100));
    let err = case.run("list 4 list 4").err;
    assert_eq!(err.lines().count(), 17, "{err}");
    assert!(
        err.ends_with("libdat: further errors in dat.conf are not shown; run with DAT_DBG_TYPE=0x3 to see them all\n")
    );
    let case = case.with("DAT_DBG_TYPE", "3");
    assert_eq!(case.run("list 4").err.lines().count(), 100);
}

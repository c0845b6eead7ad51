//! The registry of `libdat2.so.2`: lines of 2.0, registrations, handle numbers and refused opens, also in a process
//! that has loaded `libdat.so.1` too.
//!
//! Part of `tests/registry.rs`.

use std::fmt::Write as _;

use crate::case::{Case, stage};

const FINE_LINE: &str = "fine u2.0 nonthreadsafe default {}/libfine.so.2 dapl.2.0 \"eth0 0\" \"\"\n";

#[test]
fn provider_of_2_0_is_initialised_once_and_finished_after_the_last_close() {
    let case = Case::new("life2", FINE_LINE).version_2().provider("libfine.so.2", &[]);
    let answer = case.run("open fine 2 0 0 open fine 2 0 0 close 0 0 close 1 0");
    assert_eq!(answer.out.matches("provider: init fine 2.0 nonthreadsafe").count(), 1, "{}", answer.out);
    assert_eq!(answer.out.matches("provider: fini fine 2.0").count(), 1, "{}", answer.out);
    assert_eq!(answer.out.matches("open: 0x00000000 DAT_SUCCESS").count(), 2, "{}", answer.out);
    answer.quiet();
}

#[test]
fn line_of_the_other_version_is_refused_and_the_libdat_for_it_is_named() {
    let both = "old u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"\" \"\"\n\
                new u2.0 nonthreadsafe default {}/libfine.so.2 dapl.2.0 \"\" \"\"\n";
    let answer = Case::new("other2", both).version_2().run("open old 2 0 0");
    // In 2.0 the numbers of these subtypes are larger by two than in 1.2.
    assert!(answer.out.starts_with("open: 0x800a0065 DAT_PROVIDER_NOT_FOUND DAT_MAJOR_NOT_FOUND\n"), "{}", answer.out);
    assert_eq!(
        answer.reason_of("libdat2: "),
        "cannot open \"old\": {}/dat.conf:1: wanted version 2.0, but this name has only 1.2 (for libdat.so.1); \
         add a line for version 2.0"
    );
    let answer = Case::new("other1", both).run("open new 1 2 0");
    assert!(answer.out.starts_with("open: 0x800a0063 DAT_PROVIDER_NOT_FOUND DAT_MAJOR_NOT_FOUND\n"), "{}", answer.out);
    assert!(answer.reason().contains("has only 2.0 (for libdat2)"), "{}", answer.err);
}

#[test]
fn dat_2_0_open_of_a_library_for_1_2_only_names_that_cause() {
    let conf = "x u2.0 nonthreadsafe default {}/libold.so.1 dapl.2.0 \"\" \"\"\n";
    let linked = ["-Wl,--no-as-needed", "-ldat"];
    let case = Case::new("only1", conf).provider_linked("libold.so.1", &["SILENT"], &linked).version_2();
    let answer = case.run("open x 2 0 0");
    assert!(answer.out.contains("open: 0x800a0000 DAT_PROVIDER_NOT_FOUND \n"), "{}", answer.out);
    assert_eq!(
        answer.reason_of("libdat2: "),
        "cannot open \"x\": {}/dat.conf:1: {}/libold.so.1 needs libdat.so.1 and did not register \"x\" 2.0 \
         nonthreadsafe: it implements DAT 1.2 only; name a library for 2.0"
    );
}

/// A provider that is built for 1.2 and registers as 2.0 has functions of 1.2 in its table. It registers the version
/// that its init was called with.
#[test]
fn library_of_1_2_that_registers_as_2_0_is_refused_by_its_file_name() {
    let conf = "x u2.0 nonthreadsafe default {}/libold.so.1 dapl.2.0 \"\" \"\"\n";
    let case = Case::new("claims2", conf).provider("libold.so.1", &[]).version_2();
    let answer = case.run("open x 2 0 0 open x 2 0 0");
    assert!(!answer.out.contains("provider: open"), "{}", answer.out);
    assert_eq!(answer.out.matches("open: 0x800a0000 DAT_PROVIDER_NOT_FOUND \n").count(), 2, "{}", answer.out);
    assert_eq!(answer.out.matches("provider: fini x 2.0").count(), 2, "{}", answer.out);
    assert_eq!(
        answer.reason_of("libdat2: "),
        "cannot open \"x\": {}/dat.conf:1: {}/libold.so.1 is a library for libdat.so.1 (.so.1), but the line says u2; \
         name the .so.2 library"
    );
    // The soname of the library decides, not the file name in dat.conf.
    let conf = conf.replace("libold.so.1", "libold.so");
    let case = Case::new("soname1", &conf).provider_linked("libold.so", &[], &["-Wl,-soname,libold.so.1"]).version_2();
    let answer = case.run("open x 2 0 0");
    assert!(answer.reason_of("libdat2: ").contains("libold.so is a library for libdat.so.1 (.so.1)"), "{}", answer.err);
}

#[test]
fn refusal_of_a_provider_of_the_other_version_names_what_it_registered() {
    let lines = [("1.2", "2.0", "libdat: "), ("2.0", "1.2", "libdat2: ")];
    for (version, registered, library) in lines {
        let (major, minor) = version.split_once('.').unwrap();
        let conf = format!("x u{version} nonthreadsafe default {{}}/libx.so dapl.{version} \"\" \"\"\n");
        let case = Case::new("crossed2", &conf);
        let case = if major == "2" { case.version_2() } else { case };
        let (other, its_minor) = registered.split_once('.').unwrap();
        let defines = [format!("REGISTER_MAJOR={other}"), format!("REGISTER_MINOR={its_minor}")];
        let case = case.provider("libx.so", &[&defines[0], &defines[1]]);
        let expected = format!(
            "cannot open \"x\": {{}}/dat.conf:1: {{}}/libx.so was loaded, but registered \"x\" {registered} \
             nonthreadsafe instead of \"x\" {version} nonthreadsafe; correct the line, or name another library"
        );
        let words = format!("open x {major} {minor} 0");
        assert_eq!(case.run(&words).reason_of(library), expected);
        // With both libdats in the process, the libdat that opens the adapter passes the registration on to the other
        // libdat. The message is the same.
        let both = ["libdat.so.1", "libdat2.so.2"].map(|file| stage().lib.join(file).display().to_string());
        let [first, second] = if major == "1" { [&both[0], &both[1]] } else { [&both[1], &both[0]] };
        let case = case.with("LD_PRELOAD", &format!("{first}:{second}"));
        assert_eq!(case.run(&words).reason_of(library), expected);
    }
}

#[test]
fn a_second_registration_and_a_second_removal_are_refused() {
    let defines = ["TWICE", "LEAVES_AT_EXIT=\"fine\""];
    let case = Case::new("twice2", FINE_LINE).version_2().provider("libfine.so.2", &defines);
    let answer = case.run("open fine 2 0 0 close 0 0 open fine 2 0 0");
    let expected = [
        "provider: init fine 2.0 nonthreadsafe (eth0 0)",
        "provider: add again 0x80100000",
        "provider: open fine 8",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 1",
        "provider: close 0",
        "provider: fini fine 2.0 nonthreadsafe",
        "provider: remove again 0x800a0064",
        "close: 0x00000000 DAT_SUCCESS ",
        "provider: init fine 2.0 nonthreadsafe (eth0 0)",
        "provider: add again 0x80100000",
        "provider: open fine 8",
        "open: 0x00000000 DAT_SUCCESS ",
        "ia 2",
        // The provider is in use, so the removal is refused.
        "provider: remove at exit 0x80110000",
    ];
    answer.says(&expected).quiet();
}

#[test]
fn refused_provider_of_2_0_leaves_that_of_1_2_usable_in_one_process() {
    let conf = "fine u1.2 nonthreadsafe default {}/libfine.so.1 dapl.1.2 \"\" \"\"\n\
                fine u2.0 nonthreadsafe default {}/libfine.so.1 dapl.2.0 \"\" \"\"\n";
    let case = Case::new("both-fails", conf).provider("libfine.so.1", &[]);
    let case = case.with("LD_PRELOAD", stage().lib.join("libdat2.so.2").to_str().unwrap());
    let answer =
        case.run("open fine 1 2 0 open-other fine objects 0 open-other fine close 0 0 open fine 1 2 0 close 1 0");
    let codes = |call: &str| -> Vec<String> {
        answer.out.lines().filter_map(|line| Some(line.strip_prefix(call)?[..10].to_owned())).collect()
    };
    assert_eq!(codes("open other: "), ["0x800a0000"; 2]);
    assert_eq!(
        (codes("open: "), codes("close: ")),
        (vec!["0x00000000".to_owned(); 2], vec!["0x00000000".to_owned(); 2])
    );
    assert!(answer.out.contains("pz create: 0x00000000"), "{}", answer.out);
    assert!(answer.reason_of("libdat2: ").contains("is a library for libdat.so.1 (.so.1)"), "{}", answer.err);
}

#[test]
fn a_library_of_2_0_under_another_name_is_refused_by_1_2() {
    let conf = "x u1.2 nonthreadsafe default {}/libnew.so.1 dapl.1.2 \"\" \"\"\n";
    let case = Case::new("soname2", conf).provider_linked("libnew.so.1", &[], &["-Wl,-soname,libnew.so.2"]);
    let answer = case.run("open x 1 2 0");
    assert!(!answer.out.contains("provider: init"), "{}", answer.out);
    assert_eq!(
        answer.reason(),
        "cannot open \"x\": {}/dat.conf:1: {}/libnew.so.1 is libnew.so.2: it implements DAT 2.0 only; \
         name a library for 1.2"
    );
}

/// A provider that is not linked with a libdat imports unversioned functions, so the loader binds them to the libdat
/// that was loaded first.
#[test]
fn with_two_libdats_a_provider_registers_with_the_one_that_loaded_it() {
    let stage = stage();
    let first = |library: &str| stage.lib.join(library).to_str().unwrap().to_owned();
    let case = Case::new("both2", FINE_LINE).version_2().provider("libfine.so.2", &[]);
    let case = case.with("LD_PRELOAD", &first("libdat.so.1"));
    let answer = case.run("open fine 2 0 0 objects 0 close 0 0");
    assert!(answer.out.contains("open: 0x00000000 DAT_SUCCESS"), "{}{}", answer.out, answer.err);
    assert!(answer.out.contains("provider: fini fine 2.0"), "{}", answer.out);
    answer.quiet();
    let old = FINE_LINE.replace("u2.0", "u1.2").replace("libfine.so.2 dapl.2.0", "libfine.so.1 dapl.1.2");
    let case = Case::new("both1", &old).provider("libfine.so.1", &[]).with("LD_PRELOAD", &first("libdat2.so.2"));
    let answer = case.run("open fine 1 2 0 objects 0 close 0 0");
    assert!(answer.out.contains("open: 0x00000000 DAT_SUCCESS"), "{}{}", answer.out, answer.err);
    answer.quiet();
}

#[test]
fn arbitrary_handle_values_do_not_crash_calls_of_2_0() {
    let case = Case::new("handles2", FINE_LINE).version_2().provider("libfine.so.2", &["HOOKED"]);
    case.run("bad-handles").says(&["survived"]);
    let answer = case.run("open fine 2 0 0 bad-handles close 0 0 bad-handles");
    assert_eq!(answer.out.matches("survived").count(), 2, "{}", answer.out);
    assert!(!answer.out.contains(" with 0x"), "{}", answer.out);
}

#[test]
fn provider_ia_handle_maps_back_to_the_libdat_ia_number() {
    let case = Case::new("back2", FINE_LINE).version_2().provider("libfine.so.2", &[]);
    let answer = case.run("open fine 2 0 0 objects 0");
    assert!(answer.out.contains("translate again: 0x00000000 DAT_SUCCESS"), "{}", answer.out);
    assert!(answer.out.contains("same 1 number 1"), "{}", answer.out);
}

/// The file of a distribution: `ofa-v2-*` lines for every possible device, without the libraries.
#[test]
fn lines_of_2_0_are_skipped_without_log_lines_and_the_rest_is_searched() {
    let mut conf = String::new();
    for number in 0..60 {
        let library = ["libdaplofa.so.2", "libdaploscm.so.2", "libdaploucm.so.2"][number % 3];
        let params = format!("mlx4_{} {}", number / 2, number % 2 + 1);
        writeln!(conf, "ofa-v2-{number} u2.0 nonthreadsafe default {{}}/{library} dapl.2.0 \"{params}\" \"\"").unwrap();
    }
    let conf = conf + FINE_LINE;
    let case = Case::new("sixty2", &conf).version_2().provider("libfine.so.2", &[]);
    let answer = case.run("open fine 2 0 0 close 0 0");
    assert!(answer.out.contains("open: 0x00000000 DAT_SUCCESS"), "{}", answer.out);
    answer.quiet();
    let answer = case.run("open ofa-v2-59 2 0 0");
    assert!(answer.out.contains("open: 0x800a0000 DAT_PROVIDER_NOT_FOUND"), "{}", answer.out);
    let reason = answer.reason_of("libdat2: ");
    assert!(reason.contains("libdaploucm.so.2") && reason.contains("install that library"), "{reason}");
    // The sixty lines do not affect a 1.2 program either.
    let conf = conf.replace("fine u2.0", "fine u1.2").replace("libfine.so.2 dapl.2.0", "libfine.so.1 dapl.1.2");
    Case::new("sixty1", &conf).provider("libfine.so.1", &[]).run("open fine 1 2 0 close 0 0").quiet();
}

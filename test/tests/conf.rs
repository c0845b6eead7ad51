//! dat.conf, rule by rule of its grammar: accepted lines, dropped lines, and the messages about both. Also checks the
//! sample file, the documented lines and the built-in registry.
//!
//! Also replays the fuzzer's corpora `conf` and `matcher`, so that every run of the tests checks their recorded inputs.

use std::fs;
use std::sync::Arc;

use dapl_test::stage::workspace;
use dat::conf::{Conf, Key, parse};

#[path = "../fuzz/properties.rs"]
mod properties;

const OTHER_FIELDS: &str = "threadsafe default lib.so.1 dapl.1.2 \"\" \"\"";

fn read(text: impl AsRef<[u8]>) -> Conf {
    parse(&Arc::from("dat.conf"), text.as_ref())
}

/// Parses a text that must give one record and no message.
#[track_caller]
fn accepted(text: &str) -> dat::conf::Record {
    let mut conf = read(text);
    assert_eq!((conf.records.len(), &conf.diagnostics[..], &conf.absent[..]), (1, &[][..], &[][..]), "{text}");
    conf.records.remove(0)
}

/// The message about a text whose record is dropped. There must be only one.
#[track_caller]
fn dropped(text: &str) -> String {
    let conf = read(text);
    assert_eq!((conf.records.len(), conf.diagnostics.len()), (0, 1), "{text}");
    assert!(conf.diagnostics[0].drops_record, "{text}");
    conf.diagnostics[0].to_string()
}

/// The message about a text whose record is kept. There must be only one.
#[track_caller]
fn accepted_with(text: &str) -> String {
    let conf = read(text);
    assert_eq!((conf.records.len(), conf.diagnostics.len()), (1, 1), "{text}");
    assert!(!conf.diagnostics[0].drops_record, "{text}");
    conf.diagnostics[0].to_string()
}

#[test]
fn dat_conf_record_has_eight_fields() {
    let record =
        accepted("OpenIB-cma u1.2 nonthreadsafe default /usr/lib64/libdaplcma.so mv_dapl.1.2 \"ib0 0\" \"\"\n");
    assert_eq!(record.key, Key { name: b"OpenIB-cma".to_vec(), major: 1, minor: 2, thread_safe: false });
    assert_eq!((&record.library[..], &record.params[..]), (&b"/usr/lib64/libdaplcma.so"[..], &b"ib0 0"[..]));
    assert_eq!(record.place.to_string(), "dat.conf:1");
}

#[test]
fn every_missing_field_is_named_at_the_end_of_the_line() {
    let words: Vec<&str> = "a u1.2 threadsafe default lib dapl.1.2".split(' ').collect();
    let fields = ["api_version", "thread_safety", "default", "lib_path", "provider_version", "ia_params"];
    for (count, field) in (1..).zip(fields) {
        let line = words[..count].join(" ");
        let said = dropped(&line);
        let start = format!("dat.conf:1:{}: {field}: missing (end of line); ", line.len() + 1);
        assert!(said.starts_with(&start) && said.ends_with("; this record is dropped"), "{said}");
    }
    assert_eq!(
        accepted_with("a u1.2 threadsafe default lib dapl.1.2 \"x\"  # the documentation says seven"),
        "dat.conf:1:43: platform_params: missing; \"\" belongs at the end of the line"
    );
    assert_eq!(
        dropped(&format!("a u1.2 {OTHER_FIELDS} x")),
        "dat.conf:1:51: end of record: \"x\"; only a comment may follow the eighth field; this record is dropped"
    );
}

#[test]
fn ia_names_have_at_most_255_bytes_and_may_be_empty() {
    assert_eq!(accepted(&format!("\"\" u1.2 {OTHER_FIELDS}")).key.name, b"");
    assert_eq!(accepted(&format!("{} u1.2 {OTHER_FIELDS}", "n".repeat(255))).key.name.len(), 255);
    let said = dropped(&format!("  {} u1.2 {OTHER_FIELDS}", "n".repeat(256)));
    assert_eq!(said, "dat.conf:1:3: ia_name: 256 bytes long; at most 255 bytes are allowed; this record is dropped");
}

#[test]
fn api_versions_have_digits_on_both_sides_of_one_dot() {
    for (text, version) in [("u1.2", (1, 2)), ("u2.0", (2, 0)), ("u0.65535", (0, 65535)), ("u01.02", (1, 2))] {
        let key = accepted(&format!("a {text} {OTHER_FIELDS}")).key;
        assert_eq!((key.major, key.minor), version);
    }
    for text in ["U1.2", "u1", "u1.", "u.5", "u.", "u", "1.2", "u1.2.3", "u1.2x", "u-1.2", "u+1.2", "x1.2", "u65536.0"]
    {
        let said = dropped(&format!("a {text} {OTHER_FIELDS}"));
        assert!(said.starts_with(&format!("dat.conf:1:3: api_version: \"{text}\"; allowed is u or k")), "{said}");
    }
}

#[test]
fn kernel_and_nondefault_lines_are_skipped_but_recorded_as_absent() {
    let conf = read(format!("k k1.2 {OTHER_FIELDS}\nn u1.2 threadsafe nondefault l dapl.1.2 \"\" \"\"\n"));
    assert!(conf.records.is_empty());
    let absent: Vec<_> = conf.absent.iter().map(|absent| (&absent.name[..], absent.place.line)).collect();
    assert_eq!(absent, [(&b"k"[..], 1), (&b"n"[..], 2)]);
    assert!(conf.diagnostics.iter().all(|diagnostic| !diagnostic.drops_record));
}

#[test]
fn keywords_are_case_sensitive_and_must_match_exactly() {
    for (line, column, field) in [
        ("a u1.2 threadsafeX default l d.1.2 \"\" \"\"", 8, "thread_safety"),
        ("a u1.2 Threadsafe default l d.1.2 \"\" \"\"", 8, "thread_safety"),
        ("a u1.2 threadsafe defaultX l d.1.2 \"\" \"\"", 19, "default"),
        ("a u1.2 threadsafe \"\" l d.1.2 \"\" \"\"", 19, "default"),
    ] {
        let said = dropped(line);
        assert!(said.starts_with(&format!("dat.conf:1:{column}: {field}: ")), "{said}");
    }
}

#[test]
fn lib_path_is_required_and_so_2_for_u1_2_is_a_warning() {
    let said = dropped("a u1.2 threadsafe default \"\" d.1.2 \"\" \"\"");
    assert_eq!(said, "dat.conf:1:27: lib_path: empty; the file name of a library is required; this record is dropped");
    let said = accepted_with("a u1.2 threadsafe default libx.so.2 d.1.2 \"\" \"\"");
    assert_eq!(said, "dat.conf:1:27: lib_path: \"libx.so.2\"; a library named .so.2 serves u2.0");
    accepted("a u2.0 threadsafe default libx.so.2 d.2.0 \"\" \"\"");
}

#[test]
fn malformed_provider_versions_are_warnings() {
    accepted("a u1.2 threadsafe default l mv_dapl.10.20 \"\" \"\"");
    for version in ["SUNW1.0", "dapl", "dapl.1", "dapl.1.", ".1.2", "dapl.1.2.3", "dapl.a.2", "\"\""] {
        let said = accepted_with(&format!("a u1.2 threadsafe default l {version} \"\" \"\""));
        assert!(said.starts_with("dat.conf:1:29: provider_version: "), "{said}");
    }
}

#[test]
fn comment_starts_only_at_the_start_of_a_field() {
    for line in ["# a", "   # a", "\t#", "#"] {
        assert_eq!(read(line), Conf::default(), "{line}");
    }
    let text = format!(
        "a u1.2 {OTHER_FIELDS} # tail\nb u1.2 {OTHER_FIELDS}#tail\nc#c u1.2 threadsafe default l#1 d.1.2 \"#\" \"\"\n"
    );
    let conf = read(text);
    assert_eq!(conf.diagnostics, []);
    let names: Vec<_> = conf.records.iter().map(|record| &record.key.name[..]).collect();
    assert_eq!(names, [&b"a"[..], b"b", b"c#c"], "a comment at the end of a line hides the next line");
    assert_eq!((&conf.records[2].library[..], &conf.records[2].params[..]), (&b"l#1"[..], &b"#"[..]));
}

#[test]
fn backslashes_are_removed_in_quoted_and_kept_in_bare_text() {
    let record = accepted(r#""a b" u1.2 threadsafe default C:\dat\x.dll ri.2.0 "\\ \" \n" """#);
    assert_eq!(record.key.name, b"a b");
    assert_eq!((&record.library[..], &record.params[..]), (&br"C:\dat\x.dll"[..], &br#"\ " n"#[..]));
    let record = accepted(r#""a""u1.2""threadsafe""default""l""d.1.2""p""""#);
    assert_eq!(
        (&record.library[..], &record.params[..]),
        (&b"l"[..], &b"p"[..]),
        "a token after a closing quote needs a blank"
    );
}

#[test]
fn unterminated_quote_drops_only_its_line() {
    for (line, column) in [("\"", 1), ("a \"b", 3), ("a u1.2 threadsafe default l d.1.2 \"\" \"", 38), ("a \"\\", 3)] {
        let said = dropped(line);
        assert!(said.starts_with(&format!("dat.conf:1:{column}: ")), "{said}");
        assert!(
            said.ends_with("a quote that is not closed; it must end on the same line; this record is dropped"),
            "{said}"
        );
    }
    let conf = read(format!("\"a\nb\" u1.2 {OTHER_FIELDS}\nc u1.2 {OTHER_FIELDS}"));
    assert_eq!((conf.records.len(), conf.diagnostics.len()), (2, 1), "a record continues on the next line");
    assert_eq!((&conf.records[0].key.name[..], conf.records[0].place.line), (&b"b\""[..], 2));
}

#[test]
fn bom_and_crlf_are_accepted_and_nul_drops_the_line() {
    let conf = read(format!("\u{feff}a u1.2 {OTHER_FIELDS}\r\n\r\n# c\r\nb u1.2 {OTHER_FIELDS}\r"));
    assert_eq!((conf.records.len(), &conf.diagnostics[..]), (2, &[][..]));
    assert_eq!(conf.records[0].key.name, b"a");
    let said = dropped(&format!("a\0b u1.2 {OTHER_FIELDS}"));
    assert_eq!(said, "dat.conf:1:1: ia_name: a NUL byte; text must not contain it; this record is dropped");
    let said = dropped("a\u{b}b u1.2");
    assert!(said.contains("thread_safety"), "a vertical tab separates tokens: {said}");
}

#[test]
fn lines_with_equal_names_are_all_kept_in_order() {
    let conf = read(format!(
        "a u1.2 {OTHER_FIELDS}\na u1.2 threadsafe default other d.1.2 \"\" \"\"\na u2.0 {OTHER_FIELDS}\n"
    ));
    let lines: Vec<_> = conf.records.iter().map(|record| record.place.line).collect();
    assert_eq!(lines, [1, 2, 3]);
}

#[test]
fn the_sample_file_matches_the_built_in_registry() {
    let sample = read(fs::read(workspace().join("dat.conf")).unwrap());
    for api in [&dat::api::V1, &dat::api::V2] {
        let built_in = dat::sources::built_in(api);
        assert_eq!((&sample.diagnostics[..], &built_in.diagnostics[..]), (&[][..], &[][..]));
        let facts = |conf: &Conf| {
            let records = conf.records.iter().filter(|record| record.key.major == api.major);
            records
                .map(|record| (record.key.clone(), record.library.clone(), record.params.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(facts(&sample), facts(&built_in));
    }
}

/// Other 1.2 libdats compare the thread-safety word exactly, and programs ask for `nonthreadsafe`.
#[test]
fn documented_and_built_in_lines_of_1_2_are_nonthreadsafe() {
    let mut files = vec![workspace().join("dat.conf"), workspace().join("README.md")];
    for directory in ["docs", "docs/man", "docs/guide/src"] {
        let entries = fs::read_dir(workspace().join(directory)).unwrap().flatten().map(|entry| entry.path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            if let [_, "u1.2", safety, "default", ..] = words[..] {
                count += 1;
                wrong.extend((safety != "nonthreadsafe").then(|| format!("{}: {line}", file.display())));
            }
        }
    }
    assert!(count > 20 && wrong.is_empty(), "{count} lines were checked, wrong: {wrong:#?}");
    assert!(dat::sources::built_in(&dat::api::V1).records.iter().all(|record| !record.key.thread_safe));
}

#[test]
fn conf_and_matcher_properties_hold_for_the_fuzz_corpus() {
    for (directory, check) in [("conf", properties::conf as fn(&[u8])), ("matcher", properties::matcher)] {
        let files: Vec<_> =
            fs::read_dir(workspace().join("test/fuzz/corpus").join(directory)).unwrap().flatten().collect();
        assert!(files.len() > 5, "the corpus is missing");
        for file in files {
            check(&fs::read(file.path()).unwrap());
        }
    }
}

#[test]
fn truncated_or_changed_records_do_not_crash_the_parser() {
    let text = format!("\"a b\" u1.2 {OTHER_FIELDS} # c\nb\\\" u1.2 {OTHER_FIELDS}");
    for at in 0..text.len() {
        properties::conf(&text.as_bytes()[..at]);
        properties::conf(&text.as_bytes()[at..]);
        for byte in 0..=255 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = byte;
            properties::conf(&bytes);
        }
    }
}

#[test]
fn matcher_selects_the_nearest_minor_version_of_two_candidates() {
    for wanted in 0..=255 {
        for one in (0..=255).step_by(3) {
            for two in (0..=255).step_by(7) {
                properties::matcher(&[wanted, one, two]);
            }
        }
    }
}

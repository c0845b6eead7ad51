//! Tests of the editing of dat.conf lines, also against libdat's own parser.
#![forbid(unsafe_code)]

use super::*;

const FILE: &str = "\u{feff}# adapters\na  u1.2 nonthreadsafe default  liba.so.1 dapl.1.2 \"x \\\" y\" \"\" # the first\n\
                    \tnot an entry\n\n\"b c\" u2.0 threadsafe \"nondefault\" libb.so.2 dapl.2.0 \"\" \"\"";

fn names(text: &ConfText) -> Vec<(String, usize, bool)> {
    let name = |entry: FileEntry| (String::from_utf8(entry.name).unwrap(), entry.index, entry.is_default);
    text.entries().into_iter().map(name).collect()
}

#[test]
fn unchanged_text_is_written_back_byte_for_byte() {
    for text in [FILE, "", "\n", "a", "\r\n\r\n", "\"\n"] {
        assert_eq!(ConfText::new(text.as_bytes()).bytes(), text.as_bytes());
    }
    assert_eq!(names(&ConfText::new(FILE.as_bytes())), [("a".to_owned(), 1, true), ("b c".to_owned(), 4, false)]);
}

#[test]
fn edited_dat_conf_differs_only_in_the_changed_line() {
    let mut text = ConfText::new(FILE.as_bytes());
    assert!(text.set_default(1, false) && !text.set_default(1, false));
    assert!(text.set_default(4, true));
    text.push(b"c u1.2 threadsafe default l dapl.1.2 \"\" \"\"");
    let wanted = FILE.replace(" default  liba", " nondefault  liba").replace("\"nondefault\"", "default");
    assert_eq!(text.bytes(), format!("{wanted}\nc u1.2 threadsafe default l dapl.1.2 \"\" \"\"\n").as_bytes());
    text.remove(&[0, 4]);
    assert_eq!(names(&text), [("a".to_owned(), 0, false), ("c".to_owned(), 3, true)]);
    assert!(text.bytes().starts_with(BYTE_ORDER_MARK), "the byte order mark stays at the start of the file");
    text.replace(0, b"d u1.2 threadsafe default l dapl.1.2 \"\" \"\"");
    assert_eq!(names(&text)[0], ("d".to_owned(), 0, true));
}

#[test]
fn new_lines_have_the_line_ends_of_the_file() {
    let mut text = ConfText::new(b"# x\r\n# y");
    text.push(b"z");
    assert_eq!(text.bytes(), b"# x\r\n# y\r\nz\r\n");
    text.replace(0, b"w");
    assert_eq!(text.bytes(), b"w\r\n# y\r\nz\r\n");
}

#[test]
fn quoted_values_parse_to_the_original() {
    for value in ["", "a", "a b", "a\tb", "a\"b", "\\", "a\\\"", "#a", "a#", "C:\\x", "\u{e9}"] {
        let line = [b"x ", field(value.as_bytes()).as_slice(), b" y"].concat();
        let found: Vec<_> = closed_tokens(&line).unwrap().into_iter().map(|field| field.text).collect();
        assert_eq!(found, [b"x", value.as_bytes(), b"y"], "{value}");
    }
}

#[test]
fn every_record_that_libdat_reads_is_an_entry() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/fuzz/corpus/conf");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let text = ConfText::new(&bytes);
        assert_eq!(text.bytes(), bytes);
        for record in dat::conf::parse(&"f".into(), &bytes).records {
            let entry = text.entry(record.place.line - 1).unwrap_or_else(|| panic!("{}: {record:?}", path.display()));
            assert_eq!((&entry.name, &entry.library), (&record.key.name, &record.library));
            assert_eq!(api_version(&entry.api), Some((b'u', record.key.major as u16, record.key.minor as u16)));
            assert!(entry.is_default);
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn a_line_is_accepted_only_if_libdat_accepts_it() {
    let good = ["a u1.2 threadsafe default l dapl.1.2 \"\" \"\"", "a u1.2 nonthreadsafe nondefault l x \"\""];
    let long = format!("{} u1.2 threadsafe default l d.1.2 \"\" \"\"", "n".repeat(256));
    let bad = [
        "",
        "# a",
        "a",
        "a u1.2 threadsafe default l d.1.2",
        "a u1.2 threadsafe default l d.1.2 \"\" \"\" more",
        "a 1.2 threadsafe default l d.1.2 \"\" \"\"",
        "a u1.70000 threadsafe default l d.1.2 \"\" \"\"",
        "a u1.2 yes default l d.1.2 \"\" \"\"",
        "a u1.2 threadsafe no l d.1.2 \"\" \"\"",
        "a u1.2 threadsafe default \"\" d.1.2 \"\" \"\"",
        "a u1.2 threadsafe default l d.1.2 \" \"\"",
        &long,
    ];
    for (line, is_good) in good.iter().map(|line| (*line, true)).chain(bad.into_iter().map(|line| (line, false))) {
        assert_eq!(checked(line.as_bytes()).is_ok(), is_good, "{line}");
        let conf = dat::conf::parse(&"f".into(), line.as_bytes());
        let is_dropped = conf.diagnostics.iter().any(|diagnostic| diagnostic.drops_record);
        assert!(if is_good { !is_dropped } else { conf.records.is_empty() }, "{line}: {conf:?}");
    }
    assert!(checked(b"a u1.2 threadsafe default l d.1.2 \"\n\" \"\"").is_err());
}

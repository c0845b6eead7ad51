//! Properties of the dat.conf parser and of provider selection that hold for every input. Fuzz targets search for
//! counterexamples, and `test/tests/conf.rs` replays the corpus.
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "each target checks one of them")]

use std::sync::Arc;

use dat::conf::{self, Key};
use dat::matching::{self, NoMatch};

/// Parsing a file does not panic, a line does not affect other lines, and every message is one printable line with a
/// position.
pub(crate) fn conf(text: &[u8]) {
    let file: Arc<str> = Arc::from("dat.conf");
    let whole = conf::parse(&file, text);
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    for record in &whole.records {
        assert!(record.key.name.len() <= conf::NAME_MAX && !record.library.is_empty());
        assert!(record.key.major <= 65535 && record.key.minor <= 65535);
        for field in [&record.key.name, &record.library, &record.params] {
            assert!(!field.contains(&0) && !field.contains(&b'\n'));
        }
    }
    for diagnostic in &whole.diagnostics {
        let line = lines[diagnostic.place.line - 1];
        assert!((1..=line.len() + 1).contains(&diagnostic.column));
        let said = diagnostic.to_string();
        assert!(!said.contains(char::is_control), "{said:?}");
    }
    let dropped = whole.diagnostics.iter().filter(|diagnostic| diagnostic.drops_record).count();
    assert!(whole.records.len() + dropped <= lines.len() && whole.absent.len() <= lines.len());
    let mut alone = 0;
    for (at, line) in lines.iter().enumerate() {
        // A byte order mark counts only at the start of the file.
        let line = if at > 0 && line.starts_with(b"\xEF\xBB\xBF") { [b" ", *line].concat() } else { line.to_vec() };
        let conf = conf::parse(&file, &line);
        assert!(conf.records.len() <= 1);
        alone += conf.records.len();
    }
    assert_eq!(alone, whole.records.len());
}

/// Provider selection: the selected entry matches, no better match exists, and a refusal is correct.
pub(crate) fn matcher(data: &[u8]) {
    let key = |bytes: &[u8]| Key {
        name: vec![b'a' + bytes[0] % 2],
        major: u32::from(bytes[0] >> 1 & 3),
        minor: u32::from(bytes[0] >> 3 & 3),
        thread_safe: bytes[0] & 0x80 != 0,
    };
    let Some((first, rest)) = data.split_first() else { return };
    let wanted = key(&[*first]);
    let candidates: Vec<_> = rest.chunks(1).map(key).zip(0..).collect();
    let fits = |key: &Key, level: usize| {
        let same_major = key.name == wanted.name && key.major == wanted.major;
        let upwards = (wanted.major, wanted.minor) >= (1, 2) && key.minor > wanted.minor;
        [key.name == wanted.name, same_major, same_major && (key.minor == wanted.minor || upwards)][level]
    };
    let some = |level| candidates.iter().any(|(key, _)| fits(key, level));
    match matching::choose(&wanted, &candidates) {
        Ok(order) => {
            assert!(!order.is_empty());
            let minor = order[0].0.minor;
            for (key, _) in &order {
                assert!(fits(key, 2) && key.minor == minor);
            }
            let nearer = |key: &Key| fits(key, 2) && key.minor < minor;
            assert!(!candidates.iter().any(|(key, _)| nearer(key)));
            let rank = |(key, at): &(Key, i32)| (key.thread_safe != wanted.thread_safe, *at);
            assert!(order.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        }
        Err(NoMatch::Name) => assert!(!some(0)),
        Err(NoMatch::Major { .. }) => assert!(some(0) && !some(1)),
        Err(NoMatch::Minor { .. }) => assert!(some(1) && !some(2)),
        Err(NoMatch::ThreadSafety) => panic!("only the library refuses this"),
    }
}

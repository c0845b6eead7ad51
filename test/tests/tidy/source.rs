//! Source files for the structure rules: the list of files, their code without comments and literals, their imports.
//!
//! A minimal parser of Rust: it recognises comments, strings, characters and `crate::` paths.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use dapl_test::stage::workspace;

/// A file of the repository.
pub(crate) struct Source {
    /// Path relative to the repository root.
    pub(crate) path: String,
    /// The complete text.
    pub(crate) text: String,
}

/// All source files with these extensions, or with any if the list is empty, sorted. Built and downloaded files are
/// left out.
pub(crate) fn files(extensions: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(workspace(), &mut paths);
    paths.sort();
    let wanted = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        extensions.is_empty() || extensions.contains(&extension)
    };
    let read = |path: PathBuf| Source {
        text: String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
        path: path.strip_prefix(workspace()).unwrap().to_str().expect("paths of the repository are UTF-8").to_owned(),
    };
    paths.into_iter().filter(wanted).map(read).collect()
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let kind = entry.file_type().unwrap();
        // Build output, downloads, or an editor's files. Two dot directories belong to the project.
        let is_foreign = name.starts_with("target") || name.starts_with('.') && name != ".ci" && name != ".cargo";
        if kind.is_dir() && !is_foreign {
            walk(&entry.path(), found);
        } else if kind.is_file() && (!is_foreign || name == ".gitignore") && !name.ends_with(".swp") {
            found.push(entry.path());
        }
    }
}

impl Source {
    /// Returns the code without comments, strings and character literals. Line numbers are kept.
    pub(crate) fn code(&self) -> String {
        strip(&self.text)
    }

    /// Returns the code without the test and model modules at its foot.
    pub(crate) fn product_code(&self) -> String {
        let mut code = self.code();
        for foot in ["#[cfg(test)]\nmod tests {", "#[cfg(all(test, loom))]\nmod interleavings {"] {
            if let Some(at) = code.find(foot) {
                code.truncate(at);
            }
        }
        code
    }
}

/// All `crate::` paths, without the prefix. `use crate::{a::{x, y}, b}` and `crate::c::f()` give a/x, a/y, b and c/f.
/// `$crate` in macros is ignored.
pub(crate) fn imports(code: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c: char| c == '$' || is_word(c)) {
            expand(&mut code[at + "crate::".len()..].trim_start(), &mut Vec::new(), &mut found);
        }
    }
    found.remove(&Vec::new());
    found
}

/// Parses one path of a `use`, including a list in braces at its end. `rest` is set to the text after the path.
pub(crate) fn expand(rest: &mut &str, prefix: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>) {
    let above = prefix.len();
    loop {
        *rest = rest.trim_start();
        if let Some(list) = rest.strip_prefix('{') {
            *rest = list;
            while !rest.is_empty() && !rest.starts_with('}') {
                expand(rest, prefix, found);
                *rest = rest.trim_start_matches(|c: char| c != ',' && c != '}');
                *rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            }
            *rest = rest.strip_prefix('}').unwrap_or(rest);
            break;
        }
        let name = first_word(rest);
        *rest = &rest[name.len()..];
        // `self` and `*` stand for the preceding module.
        if !name.is_empty() && name != "self" {
            prefix.push(name);
        }
        match rest.strip_prefix("::") {
            Some(below) if below.starts_with(|c| is_word(c) || c == '{') => *rest = below,
            _ => {
                found.insert(prefix.clone());
                break;
            }
        }
    }
    prefix.truncate(above);
}

/// Byte offsets at which a word occurs as a whole word.
pub(crate) fn word(code: &str, wanted: &str) -> Vec<usize> {
    let stands_alone = |at: &usize| {
        let (before, after) = (&code[..*at], &code[at + wanted.len()..]);
        !before.ends_with(is_word) && !after.starts_with(is_word)
    };
    code.match_indices(wanted).map(|(at, _)| at).filter(stands_alone).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| is_word(*c)).collect()
}

fn strip(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => quoted(rest, '"'),
            'r' if !code.ends_with(|c: char| is_word(c) && !"bc".contains(c)) => raw_string(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if length == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().filter(|c| *c == '\n'));
            rest = &rest[length..];
        }
    }
    code
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Length of a literal up to its closing quote; a backslash escapes a quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_guarded = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_guarded => is_guarded = false,
            '\\' => is_guarded = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of `r"..."` or `r#"..."#`; 0 if the text is an identifier.
fn raw_string(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let body = 2 + hashes;
    let end = format!("\"{}", "#".repeat(hashes));
    text[body..].find(&end).map_or(text.len(), |at| body + at + end.len())
}

/// Length of a character literal such as `'x'` or an escaped one; 0 if the text is a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(text, '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 0,
    }
}

#[test]
fn comments_and_string_literals_are_stripped() {
    let text = "a // unsafe\nb /* unsafe /* x */ unsafe */ c \"un\\\"safe\" 'u' '\\'' r#\"unsafe\"# <'a> d";
    assert_eq!(strip(text), "a \nb  c     <'a> d");
    assert_eq!(strip("b\"x\" br\"y\" for r in"), "b b for r in");
}

#[test]
fn imports_are_resolved_to_full_paths() {
    let code = "use crate::{a::{x, y::{self, z}}, b,\n c::*};\ncrate::d::e(); $crate::f; mycrate::g; crate::h::<I>()";
    let found: Vec<_> = imports(code).into_iter().map(|path| path.join("/")).collect();
    assert_eq!(found, ["a/x", "a/y", "a/y/z", "b", "c", "d/e", "h"]);
    assert_eq!(word("unsafe_code unsafe unsafe{", "unsafe"), [12, 19]);
}

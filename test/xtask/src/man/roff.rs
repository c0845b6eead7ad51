//! Writes pages with the man(7) macros, which every system has. Does no I/O.
#![forbid(unsafe_code)]

use super::source::{Block, Page};

/// Maximum line length; mandoc warns above 80.
const WIDTH: usize = 78;

/// Footer of all pages.
pub(crate) struct Footer<'a> {
    /// Date of the release.
    pub(crate) date: &'a str,
    /// Name and version of the project.
    pub(crate) release: &'a str,
}

/// Returns the text of a page. `synopsis` is inserted unchanged before the description; if it is empty, the section
/// is omitted.
pub(crate) fn render(page: &Page, synopsis: &[String], foot: &Footer<'_>) -> String {
    let head = page.name.to_uppercase();
    let Footer { date, release } = foot;
    let mut out = format!(".TH {head} {} \"{date}\" \"{release}\" \"uDAPL 1.2\"\n", page.section);
    out += &format!(".SH NAME\n{} \\- {}\n", plain(&page.name), plain(&page.brief));
    if !synopsis.is_empty() {
        out += ".SH SYNOPSIS\n";
        code(&mut out, synopsis);
    }
    // mandoc warns about an empty section.
    if !page.description.is_empty() {
        out += ".SH DESCRIPTION\n";
        blocks(&mut out, &page.description);
    }
    for (heading, below) in &page.sections {
        out += &format!(".SH {}\n", plain(heading));
        blocks(&mut out, below);
    }
    out
}

fn blocks(out: &mut String, blocks: &[Block]) {
    for (at, block) in blocks.iter().enumerate() {
        match block {
            Block::Text(text) => {
                if at > 0 {
                    *out += ".PP\n";
                }
                line(out, text);
            }
            Block::Term(term, text) => {
                *out += ".TP\n";
                line(out, term);
                line(out, text);
            }
            Block::Point(text) => {
                *out += ".IP \\(bu 3\n";
                line(out, text);
            }
            Block::Code(lines) => {
                if at > 0 {
                    *out += ".PP\n";
                }
                code(out, lines);
            }
        }
    }
}

fn code(out: &mut String, lines: &[String]) {
    *out += ".nf\n";
    for text in lines {
        *out += &guarded(&plain(text).replace('-', "\\-"));
        out.push('\n');
    }
    *out += ".fi\n";
}

/// Writes text with code in bold. Each sentence begins a line, and long sentences are broken.
fn line(out: &mut String, text: &str) {
    let mut whole = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 0 {
            whole += &plain(&links(part));
            continue;
        }
        // The section number of a reference is not bold.
        let (name, section) = match part.rfind('(') {
            Some(open) if part[open..].len() == 3 && part.ends_with(')') => part.split_at(open),
            _ => (part, ""),
        };
        whole += &format!("\\fB{}\\fP{section}", plain(name).replace('-', "\\-"));
    }
    for sentence in whole.split_inclusive(". ") {
        let mut rest = sentence.trim_end();
        while let Some(at) = place_to_break(rest) {
            *out += &guarded(&rest[..at]);
            out.push('\n');
            rest = &rest[at + 1..];
        }
        *out += &guarded(rest);
        out.push('\n');
    }
}

/// Position of the last space before which the text is short enough for a line; if there is none, of the first space.
/// `None` if the whole text is short enough.
fn place_to_break(text: &str) -> Option<usize> {
    if text.len() <= WIDTH {
        return None;
    }
    text.match_indices(' ').map(|(at, _)| at).take_while(|at| *at <= WIDTH).last().or_else(|| text.find(' '))
}

/// Replaces Markdown links by their text.
fn links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, words, after)) = link(rest) {
        out += before;
        out += words;
        rest = after;
    }
    out + rest
}

fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('[')?;
    let (words, rest) = rest.split_once("](")?;
    let (_, after) = rest.split_once(')')?;
    Some((before, words, after))
}

fn plain(text: &str) -> String {
    text.replace('\\', "\\e").replace("**", "")
}

/// Escapes a line that begins like a macro.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::man::source::parse;

    #[test]
    fn roff_text_has_macros_and_is_escaped() {
        let page = parse("# x(7) - y\n\n.hidden and `a-b\\c`. See `p(3)`.\n\n- `t`: u\n- v\n").unwrap();
        let text = render(&page, &["-f".into()], &Footer { date: "2026-01-02", release: "r 1" });
        let wanted = ".TH X 7 \"2026-01-02\" \"r 1\" \"uDAPL 1.2\"\n.SH NAME\nx \\- y\n.SH SYNOPSIS\n.nf\n\\-f\n.fi\n.SH \
                      DESCRIPTION\n\\&.hidden and \\fBa\\-b\\ec\\fP.\nSee \\fBp\\fP(3).\n.TP\n\\fBt\\fP\nu\n.IP \\(bu 3\nv\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn links_of_a_man_page_are_replaced_by_their_texts() {
        assert_eq!(links("a [b c](d.md#e), f"), "a b c, f");
    }
}

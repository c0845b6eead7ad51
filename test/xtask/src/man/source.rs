//! Parser of manual pages in `docs/man/`: a small subset of Markdown, so that they can be read in place.
//!
//! The first line is `# name(section) - description`. Paragraphs, `-` lists, fenced code and `##` headings follow. A
//! list whose items begin with code and a colon explains terms. Tables and other headings are not supported. The parser
//! does no I/O.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Page {
    /// Name, such as `dat_ep_connect`.
    pub(crate) name: String,
    /// Section, such as 3.
    pub(crate) section: u8,
    /// Description in the NAME line.
    pub(crate) brief: String,
    /// Text before the first heading.
    pub(crate) description: Vec<Block>,
    /// Headings with their elements.
    pub(crate) sections: Vec<(String, Vec<Block>)>,
}

/// Elements of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Block {
    Text(String),
    /// An item that explains a term.
    Term(String, String),
    /// An item of a plain list.
    Point(String),
    /// Code, line by line.
    Code(Vec<String>),
}

/// Parses the Markdown source of a page.
pub(crate) fn parse(text: &str) -> Result<Page, String> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (name, section, brief) = title(first).ok_or_else(|| format!("\"{first}\" is not `# name(section) - brief`"))?;
    let (mut description, mut sections) = (Vec::new(), Vec::<(String, Vec<Block>)>::new());
    let mut lines = rest.lines().peekable();
    while let Some(line) = lines.next() {
        let blocks = sections.last_mut().map_or(&mut description, |(_, blocks)| blocks);
        if let Some(heading) = line.strip_prefix("## ") {
            sections.push((heading.to_owned(), Vec::new()));
        } else if line.starts_with("```") {
            blocks.push(Block::Code(lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect()));
        } else if !line.is_empty() {
            let mut whole = line.to_owned();
            while let Some(next) = lines.next_if(|next| !next.is_empty() && !is_opening(next)) {
                whole = format!("{whole} {}", next.trim());
            }
            blocks.push(block(whole));
        }
    }
    Ok(Page { name, section, brief, description, sections })
}

fn title(line: &str) -> Option<(String, u8, String)> {
    let (name, rest) = line.strip_prefix("# ")?.split_once('(')?;
    let (section, brief) = rest.split_once(") - ")?;
    Some((name.to_owned(), section.parse().ok()?, brief.to_owned()))
}

/// Whether a line begins a new element.
fn is_opening(line: &str) -> bool {
    ["- ", "```", "## "].iter().any(|opening| line.starts_with(opening))
}

fn block(text: String) -> Block {
    let Some(item) = text.strip_prefix("- ") else { return Block::Text(text) };
    // A colon inside code does not end the term.
    let mut is_code = false;
    let colon = item.char_indices().find(|(at, c)| {
        is_code ^= *c == '`';
        *c == ':' && !is_code && item[at + 1..].starts_with(' ')
    });
    match colon {
        Some((at, _)) if item.starts_with('`') => Block::Term(item[..at].to_owned(), item[at + 2..].to_owned()),
        _ => Block::Point(item.to_owned()),
    }
}

impl Page {
    /// Elements below a heading.
    pub(crate) fn below(&self, heading: &str) -> &[Block] {
        self.sections.iter().find(|(name, _)| name == heading).map_or(&[], |(_, blocks)| blocks)
    }

    /// All terms that the page explains; each name is a separate entry.
    pub(crate) fn all_terms(&self) -> BTreeSet<String> {
        let sections = self.sections.iter().flat_map(|(_, blocks)| blocks);
        let blocks = self.description.iter().chain(sections);
        let terms = blocks.filter_map(|block| if let Block::Term(term, _) = block { Some(term) } else { None });
        terms.flat_map(|term| term.split(", ")).map(|term| term.replace('`', "")).collect()
    }

    /// The terms explained below a heading, without backquotes.
    pub(crate) fn terms(&self, heading: &str) -> Vec<String> {
        let terms = self.below(heading).iter().filter_map(|block| match block {
            Block::Term(term, _) => Some(term.replace('`', "")),
            _ => None,
        });
        terms.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_page_has_a_title_text_terms_points_and_code() {
        let page = parse(
            "# a_b(3) - does\n\nOne\ntwo.\n\n## PARAMETERS\n\n- `x`: long\n  text: more.\n- plain: no\n\n```\n  a:\n\nb\n```\nEnd.\n",
        )
        .unwrap();
        assert_eq!((page.name.as_str(), page.section, page.brief.as_str()), ("a_b", 3, "does"));
        assert_eq!(page.description, [Block::Text("One two.".into())]);
        let wanted = [
            Block::Term("`x`".into(), "long text: more.".into()),
            Block::Point("plain: no".into()),
            Block::Code(vec!["  a:".into(), String::new(), "b".into()]),
            Block::Text("End.".into()),
        ];
        assert_eq!(page.below("PARAMETERS"), wanted);
        assert_eq!(page.terms("PARAMETERS"), ["x"]);
        assert!(parse("a_b - does").is_err() && parse("# a(x) - y").is_err());
    }

    #[test]
    fn colon_in_code_does_not_end_a_term() {
        assert_eq!(block("- `a: b` and `c`: d".into()), Block::Term("`a: b` and `c`".into(), "d".into()));
    }
}

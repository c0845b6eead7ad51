//! The table of variables in docs/settings.md: writes it, and inserts its rows into manual pages. Does no I/O.
//!
//! A paragraph `{variables: sm}` of a page is replaced by all rows of that owner: each variable with its meaning.
#![forbid(unsafe_code)]

use super::source::{Block, Page};

/// A row: the providers that read the variables, or [`ALL`]; names of the variables; meaning.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Row {
    owners: Vec<String>,
    names: String,
    meaning: String,
}

/// Replaces the table of a page by the rows of the libraries' tables.
pub(crate) fn page(page: &str) -> Result<String, String> {
    const HEAD: &str = "| variable | meaning |\n|---|---|\n";
    let (before, after) = page.split_once(HEAD).ok_or("docs/settings.md has no table of variables")?;
    let rest: String = after.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect();
    Ok(format!("{before}{HEAD}{}{rest}", dat_settings::page::rows()))
}

/// Name of the owner "all providers", for a row that names no provider.
const ALL: &str = "all";
const PROVIDERS: [&str; 3] = ["sm", "usnic", "verbs"];

/// Parses the table below "## Variables".
pub(crate) fn rows(settings: &str) -> Vec<Row> {
    let section =
        settings.split("\n## Variables\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
    let row = |line: &str| {
        let (names, meaning) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once(" | ")?;
        let (mut owners, mut meaning) = (Vec::new(), meaning);
        // A meaning that begins "verbs, `socket` and `none`: bytes ..." belongs to the verbs provider; "sm, usnic:
        // time ..." belongs to two providers.
        while let Some((owner, rest)) = PROVIDERS.iter().find_map(|owner| {
            let rest = meaning.strip_prefix(owner)?;
            Some((owner, rest.strip_prefix(", ").or_else(|| rest.strip_prefix(": "))?))
        }) {
            owners.push((*owner).to_owned());
            let is_last = meaning[owner.len()..].starts_with(':');
            meaning = rest;
            if is_last {
                break;
            }
        }
        if owners.is_empty() {
            owners.push(ALL.to_owned());
        }
        Some(Row { owners, names: format!("`{names}"), meaning: meaning.to_owned() })
    };
    section.lines().filter_map(row).collect()
}

/// Replaces the paragraphs `{variables: OWNER}` of a page by rows.
pub(crate) fn fill_in(page: &mut Page, rows: &[Row]) -> Result<(), String> {
    for (_, blocks) in &mut page.sections {
        let asked = |block: &Block| match block {
            Block::Text(text) => text.strip_prefix("{variables: ")?.strip_suffix('}').map(str::to_owned),
            _ => None,
        };
        while let Some((at, owner)) = blocks.iter().enumerate().find_map(|(at, block)| Some((at, asked(block)?))) {
            let of_owner = rows.iter().filter(|row| row.owners.contains(&owner));
            let terms: Vec<Block> = of_owner.map(|row| Block::Term(row.names.clone(), row.meaning.clone())).collect();
            if terms.is_empty() {
                return Err(format!("docs/settings.md has no variables of {owner}"));
            }
            blocks.splice(at..=at, terms);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::man::source::parse;

    #[test]
    fn settings_rows_are_on_the_page_of_their_provider() {
        let readme = "a\n## Variables\n\n| variable | meaning |\n|---|---|\n| `A_B` | the one |\n| `C`, `D` | sm: x: y |\n\
                      | `E` | verbs, `socket`: z |\n| `G` | sm, verbs: w; sm: 1; verbs: 2 |\n\n## More\n| `F` | sm: no |\n";
        let rows = rows(readme);
        let owners: Vec<_> = rows.iter().map(|row| (row.owners.join(" "), row.names.as_str())).collect();
        let all = [("all", "`A_B`"), ("sm", "`C`, `D`"), ("verbs", "`E`"), ("sm verbs", "`G`")];
        assert_eq!(owners, all.map(|(owners, names)| (owners.to_owned(), names)));
        let meanings: Vec<_> = rows.iter().map(|row| row.meaning.as_str()).collect();
        assert_eq!(meanings, ["the one", "x: y", "`socket`: z", "w; sm: 1; verbs: 2"]);
        let mut page = parse("# p(7) - q\n\n## ENVIRONMENT\n\n{variables: sm}\n\nEnd.\n").unwrap();
        fill_in(&mut page, &rows).unwrap();
        assert_eq!(page.below("ENVIRONMENT").len(), 3);
        assert_eq!(page.terms("ENVIRONMENT"), ["C, D", "G"]);
        assert!(fill_in(&mut parse("# p(7) - q\n\n## E\n\n{variables: ib}\n").unwrap(), &rows).is_err());
    }
}

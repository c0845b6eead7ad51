//! The current release: the newest entry of `docs/CHANGELOG.md`. Its version must match the packages.
#![forbid(unsafe_code)]

use dapl_test::stage::workspace;

use crate::Result;

#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Release {
    /// Version, such as 0.1.0.
    pub(crate) version: String,
    /// Year, month and day.
    pub(crate) date: String,
    /// List of changes.
    pub(crate) changes: Vec<String>,
}

pub(crate) fn current() -> Result<Release> {
    let text = std::fs::read_to_string(workspace().join("docs/CHANGELOG.md")).map_err(|error| error.to_string())?;
    let release = newest(&text).ok_or("docs/CHANGELOG.md has no line `## version - date`")?;
    if release.version != env!("CARGO_PKG_VERSION") {
        return Err(format!(
            "docs/CHANGELOG.md begins with version {}, but the packages have {}",
            release.version,
            env!("CARGO_PKG_VERSION")
        ));
    }
    Ok(release)
}

fn newest(text: &str) -> Option<Release> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("## "));
    let (version, date) = lines.next()?.strip_prefix("## ")?.split_once(" - ")?;
    let mut changes: Vec<String> = Vec::new();
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        match (line.strip_prefix("- "), changes.last_mut()) {
            (Some(change), _) => changes.push(change.to_owned()),
            (None, Some(last)) if !line.is_empty() => *last += &format!(" {}", line.trim()),
            _ => {}
        }
    }
    Some(Release { version: version.to_owned(), date: date.to_owned(), changes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_release_of_the_change_log_is_parsed() {
        let text = "# Changes\n\nWords.\n\n## 2.0.0 - 2027-03-04\n\n- one\n  and more\n- two\n\n## 1.0.0 - 2026-01-01\n\n- old\n";
        let changes = vec!["one and more".to_owned(), "two".to_owned()];
        let wanted = Release { version: "2.0.0".into(), date: "2027-03-04".into(), changes };
        assert_eq!(newest(text), Some(wanted));
        assert_eq!(newest("nothing"), None);
        assert_eq!(current().unwrap().version, env!("CARGO_PKG_VERSION"));
    }
}

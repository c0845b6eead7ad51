//! The reason for a refused open: the request, the cause and the remedy, as one line for people and as fields for
//! tools.
//!
//! `registry` creates a [`RefusedOpen`] if no line or registration matches, no library can serve the open, the provider
//! refuses, or waiting for an init would deadlock. `report` stores it for tools, and may log it. Pure.
#![forbid(unsafe_code)]

use std::fmt;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct CauseAndRemedy {
    pub(crate) cause: String,
    /// Remedy; empty if the cause implies the remedy, or if none is known.
    pub(crate) remedy: String,
}

impl CauseAndRemedy {
    pub(crate) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into() }
    }

    /// Combines several causes: all causes in order, each remedy once.
    pub(crate) fn all(several: Vec<CauseAndRemedy>) -> Self {
        let mut remedies: Vec<String> = Vec::new();
        for cause in &several {
            if !cause.remedy.is_empty() && !remedies.contains(&cause.remedy) {
                remedies.push(cause.remedy.clone());
            }
        }
        let causes: Vec<_> = several.into_iter().map(|cause| cause.cause).collect();
        Self { cause: causes.join("; also "), remedy: remedies.join("; ") }
    }
}

/// A refused open: the requested name, and why it was refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RefusedOpen {
    /// A word for tools:
    ///
    /// - `name`: no usable line of dat.conf and no registration has this name.
    /// - `major-version`: the name exists in other major versions only.
    /// - `minor-version`: the name exists in this major version, but in no minor version that the program can use.
    /// - `thread-safety`: thread safety was requested, but the provider is not thread-safe.
    /// - `library`: no library of the name's lines can serve the open, for example because it cannot be loaded, or
    ///   because it does not register the name.
    /// - `device`: the provider refuses to open the adapter.
    /// - `busy`: the provider is being initialised or finalised, either by the calling thread, or by one for which the
    ///   calling thread cannot wait without a deadlock.
    pub(crate) kind: &'static str,
    pub(crate) name: Vec<u8>,
    /// The lines of dat.conf that the refusal is about, each as `file:line`, separated by commas. Empty if there is
    /// none, or if the cause itself names the lines.
    pub(crate) place: String,
    pub(crate) cause: CauseAndRemedy,
}

impl RefusedOpen {
    /// The fields for tools, in this order: kind, name, place, cause, remedy.
    pub(crate) fn fields(&self) -> [String; 5] {
        let Self { kind, name, place, cause } = self;
        let name = name.escape_ascii().to_string();
        [(*kind).to_owned(), name, place.clone(), cause.cause.clone(), cause.remedy.clone()]
    }
}

impl fmt::Display for RefusedOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot open \"{}\": ", self.name.escape_ascii())?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.cause.cause)?;
        if self.cause.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.cause.remedy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_message_omits_an_empty_place_or_remedy() {
        let line = |place: &str, remedy: &str| {
            let cause = CauseAndRemedy::new("it is not there", remedy);
            RefusedOpen { kind: "library", name: b"a\tb".to_vec(), place: place.to_owned(), cause }.to_string()
        };
        assert_eq!(line("", ""), r#"cannot open "a\tb": it is not there"#);
        assert_eq!(line("f:3", "bring it"), r#"cannot open "a\tb": f:3: it is not there; bring it"#);
    }

    #[test]
    fn joined_causes_list_each_remedy_once() {
        let cause = CauseAndRemedy::all(vec![
            CauseAndRemedy::new("a", "x"),
            CauseAndRemedy::new("b", ""),
            CauseAndRemedy::new("c", "x"),
            CauseAndRemedy::new("d", "y"),
        ]);
        assert_eq!(cause, CauseAndRemedy::new("a; also b; also c; also d", "x; y"));
    }
}

//! Settings of the trace: environment variables, and the word `io_trc=` in an IA's `ia_params`.
//!
//! `io_trc=` is removed here; the other words of `ia_params` are passed to the provider unchanged. An invalid value is
//! logged with name, text and range, and the default is used.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use crate::runtime::logger;

/// The trace settings of one IA.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TraceSettings {
    /// `io_trc=` or `DAPL_DBG_IO_TRC`: number of posts recorded per EP, at most 65,536, rounded up to a power of two.
    /// 0, the default, disables tracing. 1 means [`TraceSettings::PLAIN`] posts. The variable is ignored in a set-uid
    /// program.
    posts: usize,
    /// `DAPL_DBG_IO_TRC_FILE`: all traces are logged when this file is touched. Ignored in a set-uid program.
    file: Option<PathBuf>,
}

impl TraceSettings {
    const PLAIN: usize = 32;
    const MAX: u64 = 65_536;

    /// Reads the settings from `ia_params` and the environment. Also returns the words of `ia_params` for the provider.
    pub fn read(params: &str) -> (Self, String) {
        Self::from(params, logger::secure_variable)
    }

    fn from(params: &str, variable: impl Fn(&str) -> Option<String>) -> (Self, String) {
        let (own_words, rest): (Vec<_>, Vec<_>) =
            params.split_ascii_whitespace().partition(|word| word.starts_with("io_trc="));
        let rest = if own_words.is_empty() { params.to_owned() } else { rest.join(" ") };
        let by_word = own_words.last().map(|word| ("io_trc", word["io_trc=".len()..].to_owned()));
        let by_variable = || Some(("DAPL_DBG_IO_TRC", variable("DAPL_DBG_IO_TRC").filter(|text| !text.is_empty())?));
        let given = by_word.or_else(by_variable);
        let posts = match given.and_then(|(name, text)| bounded(name, &text, Self::MAX)) {
            Some(1) => Self::PLAIN,
            posts => posts.unwrap_or(0) as usize,
        };
        let file = variable("DAPL_DBG_IO_TRC_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        (TraceSettings { posts, file }, rest)
    }

    /// Number of posts recorded per EP; `None` if tracing is off.
    pub(super) fn length(&self) -> Option<usize> {
        (self.posts > 0).then(|| self.posts.next_power_of_two())
    }

    /// Post number in the tokens of SRQ receives, which are not posted to an EP: 1 if tracing is on, so that their
    /// completions are recorded, otherwise 0.
    pub fn shared_post(&self) -> u32 {
        u32::from(self.posts > 0)
    }

    /// The file whose modification requests a log of all traces.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }
}

fn bounded(name: &str, text: &str, max: u64) -> Option<u64> {
    let value = logger::number(text).map(u64::from).filter(|value| *value <= max);
    if value.is_none() {
        log::warn!("{name}: \"{text}\" is not a number from 0 to {max}; using 0 (no trace), the default");
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(params: &str, variables: &[(&str, &str)]) -> (TraceSettings, String) {
        let known = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| text.to_string());
        TraceSettings::from(params, known)
    }

    #[test]
    fn tracing_is_off_by_default_and_other_parameters_are_unchanged() {
        let (settings, rest) = from(" /base  7 ", &[]);
        assert_eq!((settings.length(), rest.as_str()), (None, " /base  7 "));
        assert_eq!(from("x", &[("DAPL_DBG_IO_TRC", "0")]).0.length(), None);
    }

    #[test]
    fn trace_length_one_means_32_and_others_are_rounded_up() {
        let length = |text| from("", &[("DAPL_DBG_IO_TRC", text)]).0.length();
        assert_eq!(
            [length("1"), length("0x10"), length("100"), length("65536")].map(Option::unwrap),
            [32, 16, 128, 65_536]
        );
        assert_eq!(
            [length("65537"), length("-1"), length("many"), length("")],
            [None; 4],
            "too large, negative, no number, empty"
        );
    }

    #[test]
    fn trace_settings_of_ia_params_take_precedence_and_are_removed() {
        let variables = [("DAPL_DBG_IO_TRC", "64"), ("DAPL_DBG_IO_TRC_FILE", "/f")];
        let (settings, rest) = from("/base io_trc=256 7", &variables);
        assert_eq!((settings.length(), rest.as_str()), (Some(256), "/base 7"));
        assert_eq!(settings.file(), Some(&PathBuf::from("/f")));
        let (settings, rest) = from("/base io_trcs=9", &variables);
        assert_eq!(settings.length(), Some(64));
        assert_eq!(rest, "/base io_trcs=9", "an unknown word is left to the provider");
        assert_eq!(from("io_trc=x", &variables).0.length(), None, "a bad word does not fall back to the variable");
    }
}

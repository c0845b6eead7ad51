//! Wraps text for display, to lines of at most 80 columns. Only a longer word exceeds this width.
#![forbid(unsafe_code)]

/// Maximum number of columns of a line, unless a single word is longer.
const COLUMNS: usize = 80;

/// Wraps text into lines of at most [`COLUMNS`], each indented by `indent` blanks.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            lines.push('\n');
            column = 0;
        }
        let before = if column == 0 { indent } else { 1 };
        lines.extend(std::iter::repeat_n(' ', before));
        lines.push_str(word);
        column += before + length;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_80_columns_except_for_longer_words() {
        assert_eq!(wrapped("a b", 2), "  a b\n");
        let text = wrapped("word ".repeat(60).trim_end(), 4);
        assert!(text.lines().count() == 4 && text.lines().all(|line| line.len() <= 80 && line.starts_with("    ")));
        let long = "x".repeat(100);
        assert_eq!(wrapped(&format!("a {long} b"), 1), format!(" a\n {long}\n b\n"));
    }
}

//! Output of tables. On a terminal each table overwrites the previous one; otherwise the tables follow each other.
//!
//! On a terminal, lines are cut to its width. The cursor's row stays empty below the table. If the lines do not fit
//! above that row, the last line shown states the number of omitted lines. No terminal mode is changed.
#![forbid(unsafe_code)]

use std::io::IsTerminal;

use crate::print_text;

/// Standard output, to which one table after another is written.
pub(super) struct Screen {
    is_terminal: bool,
    is_first: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Screen { is_terminal: std::io::stdout().is_terminal(), is_first: true }
    }

    /// Shows lines. Returns false if stdout is closed.
    pub(super) fn show(&mut self, lines: &[String]) -> bool {
        let is_first = std::mem::replace(&mut self.is_first, false);
        match self.is_terminal {
            true => print_text(&over(lines, size(), is_first)),
            false if is_first => print_text(&lines.join("")),
            false => print_text(&format!("\n{}", lines.join(""))),
        }
    }
}

/// Columns and rows of the terminal; 80 and 24 if unknown.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Formats a table for a terminal. The first table clears the screen. Later tables overwrite each line, so that the
/// output does not flicker.
fn over(lines: &[String], (columns, rows): (usize, usize), is_first: bool) -> String {
    let mut text = String::from(if is_first { "\x1b[H\x1b[2J" } else { "\x1b[H" });
    // The cursor needs the last row.
    let available = rows.saturating_sub(1).max(1);
    let shown = if lines.len() > available { available - 1 } else { lines.len() };
    let mut line = |line: &str| {
        text.extend(line.trim_end_matches('\n').chars().take(columns));
        text.push_str("\x1b[K\n");
    };
    lines[..shown].iter().for_each(|text| line(text));
    if shown < lines.len() {
        line(&format!("... {} lines more: --once shows all", lines.len() - shown));
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_cut_to_the_terminal() {
        let lines: Vec<String> = (0..5).map(|number| format!("line {number}\n")).collect();
        let clear = "\x1b[K\n";
        assert_eq!(over(&lines[..2], (80, 24), true), format!("\x1b[H\x1b[2Jline 0{clear}line 1{clear}\x1b[J"));
        assert_eq!(over(&lines, (5, 4), false), format!("\x1b[Hline {clear}line {clear}... 3{clear}\x1b[J"));
        assert_eq!(over(&lines, (80, 6), false).matches(clear).count(), 5, "all of them fit");
        for size in [(0, 0), (1, 1), (1, 2)] {
            assert_eq!(over(&lines, size, false).matches(clear).count(), 1, "{size:?}");
        }
    }
}

//! Parses script files, which contain further arguments of the command line.
//!
//! Blanks and line ends separate tokens. At the start of a token, `#` begins a comment, and a quote begins a token that
//! ends at the next such quote. A backslash alone at the end of a line is ignored. No other character is special.
#![forbid(unsafe_code)]

/// Returns the tokens of a script, or an error with its line.
pub(crate) fn words(text: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        words_of(line, &mut found).map_err(|reason| format!("line {}: {reason}", at + 1))?;
    }
    Ok(found)
}

fn words_of(line: &str, found: &mut Vec<String>) -> Result<(), String> {
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '#' => return Ok(()),
            // A backslash at the end of a line has no effect: the arguments continue on the next line anyway.
            '\\' if rest.trim_end() == "\\" => return Ok(()),
            '"' | '\'' => {
                let length = rest[1..].find(first).ok_or_else(|| format!("{first} is not closed"))?;
                found.push(rest[1..=length].to_owned());
                length + 2
            }
            _ => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                found.push(rest[..end].to_owned());
                end
            }
        };
        if rest[end..].starts_with(|c: char| !c.is_whitespace()) {
            return Err("a closing quote must be followed by a blank".to_owned());
        }
        rest = rest[end..].trim_start();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_split_at_blanks_and_honours_quotes_and_comments() {
        let text =
            "-T T  -D \"my adapter\" # the adapter\n\n# nothing\n\t-s 'host' \\\n client SR 10 1 -f\r\nserver SR";
        let expected = ["-T", "T", "-D", "my adapter", "-s", "host", "client", "SR", "10", "1", "-f", "server", "SR"];
        assert_eq!(words(text).unwrap(), expected);
        assert_eq!(words("a#b \"\"").unwrap(), ["a#b", ""]);
        assert!(words("").unwrap().is_empty());
    }

    #[test]
    fn error_in_a_script_is_reported_with_its_line() {
        assert_eq!(words("-T T\n-D \"x").unwrap_err(), "line 2: \" is not closed");
        assert_eq!(words("'a'b").unwrap_err(), "line 1: a closing quote must be followed by a blank");
    }
}

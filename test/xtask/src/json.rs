//! Reads numbers from lines of JSON in the output of measuring programs.
#![forbid(unsafe_code)]

use serde_json::Value;

/// Returns the number of a field of the first line that is an object with this field.
pub(crate) fn field(text: &str, name: &str) -> Option<f64> {
    let mut objects = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.find_map(|object| object[name].as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_json_field_is_found() {
        assert_eq!(field("{\"what\":\"lat\",\"size\":8,\"usec\":0.123}\n", "usec"), Some(0.123));
        assert_eq!(field("{\"what\":\"rate\",\"mps\": 12.5 }", "mps"), Some(12.5));
        assert_eq!(field("", "usec"), None);
    }
}

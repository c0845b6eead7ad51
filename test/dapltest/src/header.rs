//! The header of a result: the measured adapter, the machine and the settings. Without it figures cannot be compared.
#![forbid(unsafe_code)]

use std::ffi::c_char;

use dat_abi::*;
use dat_settings::{VariableClass, look_up};
use serde_json::{Value, json};

use crate::dat::{Ia, raw};
use crate::failure::Result;

/// Provider, machine, versions and settings of one side.
#[derive(Debug)]
pub(crate) struct Header {
    adapter: String,
    provider: String,
    cpu: String,
    processors: usize,
    kernel: String,
    /// Environment variables that change a setting, as `NAME=VALUE`.
    settings: Vec<String>,
}

impl Header {
    /// Collects the data of this machine and of an open adapter.
    pub(crate) fn new(ia: &Ia) -> Result<Self> {
        let (adapter, provider) = (raw::ia_query(ia.handle())?, raw::provider_query(ia.handle())?);
        let version = format!("{}.{}", provider.provider_version_major, provider.provider_version_minor);
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            // In values, bytes that are not UTF-8 are replaced. Variables with such bytes in the name are ignored.
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        Ok(Header {
            adapter: text(&adapter.adapter_name),
            provider: format!("{} {version}", text(&provider.provider_name)),
            cpu: cpu_model(&cpuinfo),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            settings: changed_settings(variables),
        })
    }

    /// Formats the header as the first two lines of the output.
    pub(crate) fn lines(&self) -> [String; 2] {
        let settings = if self.settings.is_empty() { "none".to_owned() } else { self.settings.join(" ") };
        let (version, api) = (env!("CARGO_PKG_VERSION"), api());
        [
            format!(
                "dapltest {version}, DAT {api}, provider {} ({}), {} x {}, Linux {}",
                self.provider, self.adapter, self.processors, self.cpu, self.kernel
            ),
            format!("settings of the environment that are not the defaults: {settings}"),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "dapltest": env!("CARGO_PKG_VERSION"),
            "dat": api(),
            "provider": self.provider,
            "adapter_name": self.adapter,
            "cpu": self.cpu,
            "processors": self.processors,
            "kernel": self.kernel,
            "settings": self.settings,
        })
    }
}

fn api() -> String {
    format!("{DAT_VERSION_MAJOR}.{DAT_VERSION_MINOR}")
}

/// Converts a C text from a record, which need not be NUL-terminated.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| c.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    // The text goes to a terminal, so control characters are removed.
    String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect()
}

/// Model of the first processor; the architecture's name if the kernel reports no model.
fn cpu_model(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == "model name");
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    model.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The variables that libdat or a provider reads and that differ from their defaults, sorted.
fn changed_settings(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut changed: Vec<String> = variables
        .filter(|(name, value)| match look_up(name) {
            VariableClass::Read(table, setting) => {
                table.value(setting, value).map_or(true, |value| value != setting.values.default())
            }
            _ => false,
        })
        .map(|(name, value)| format!("{name}={value}").replace(char::is_control, " "))
        .collect();
    changed.sort();
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_header_lists_only_settings_that_are_not_the_defaults() {
        let variables = [
            ("PATH", "/bin"),
            ("DAPL_SPIN_US", "0"),
            ("DAPL_DIR", "/run/x\ty"),
            ("DAPL_UNKNOWN", "1"),
            ("DAPL_TEST_ONLY", "1"),
        ];
        let pairs = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(changed_settings(pairs.into_iter()), ["DAPL_DIR=/run/x y", "DAPL_SPIN_US=0"]);
        let (table, setting) = match look_up("DAPL_SPIN_US") {
            VariableClass::Read(table, setting) => (table, setting),
            other => panic!("{other:?}"),
        };
        let default = setting.values.default();
        if table.value(setting, &default).is_ok() {
            assert!(changed_settings([("DAPL_SPIN_US".to_owned(), default)].into_iter()).is_empty());
        }
    }

    #[test]
    fn processor_model_is_one_line_of_text() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R)  Xeon(R)\tCPU\nprocessor\t: 1\n";
        assert_eq!(cpu_model(cpuinfo), "Intel(R) Xeon(R) CPU");
        assert_eq!(cpu_model("CPU implementer : 0x41\n"), std::env::consts::ARCH);
    }

    #[test]
    fn text_of_a_record_ends_at_the_nul() {
        let characters = b"sm0\x1b\0rest".map(|byte| byte.cast_signed() as c_char);
        assert_eq!(text(&characters), "sm0");
        assert_eq!(text(&characters[..2]), "sm");
    }
}

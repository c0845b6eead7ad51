//! Values of the settings in effect: every variable (`-e`), and the settings of each adapter (`-c`). Also finds
//! variables without effect, and errors in `ia_params`.
//!
//! The settings are those of the tables in `dat-settings`.
#![forbid(unsafe_code)]

use std::fmt::Write;

use dat_settings::{ALL, DAPL, SM, Setting, SettingsTable, USNIC, VERBS, VariableClass, look_up, nearest};
use serde_json::{Value, json};

use crate::options::Options;
use crate::registry::{Registry, ReportedEntry};
use crate::words::wrapped;
use crate::{print_json, print_output};

/// A setting with its value in effect and its source.
struct SettingReport {
    table: &'static SettingsTable,
    setting: &'static Setting,
    value: String,
    /// Source of the value: `default`, `environment`, `ia_params`, or `library` for a value that the library's name
    /// determines.
    origin: &'static str,
    /// Error in the configured value.
    trouble: Option<String>,
}

impl SettingReport {
    /// Determines the value in effect: from `ia_params` if it contains the setting, else from the environment. The
    /// default is in effect if neither contains the setting, or if the value is invalid.
    fn of(table: &'static SettingsTable, setting: &'static Setting, words: &[(&'static str, String)]) -> Self {
        let word =
            words.iter().rfind(|(name, _)| !name.is_empty() && *name == setting.name).map(|(_, text)| text.clone());
        let variable = || std::env::var_os(setting.variable).map(|text| text.to_string_lossy().into_owned());
        let (text, origin) = match word {
            Some(text) => (Some(text), "ia_params"),
            None => (variable(), "environment"),
        };
        let default = setting.values.default();
        match text.as_deref().map(|text| table.value(setting, text)) {
            None => SettingReport { table, setting, value: default, origin: "default", trouble: None },
            Some(Ok(value)) => SettingReport { table, setting, value, origin, trouble: None },
            Some(Err(allowed)) => {
                let trouble = format!("{origin}: \"{}\" is not {allowed}", text.unwrap_or_default().escape_debug());
                SettingReport { table, setting, value: default, origin: "default", trouble: Some(trouble) }
            }
        }
    }

    fn json(&self) -> Value {
        let Setting { name, variable, values, meaning } = self.setting;
        json!({
            "variable": variable,
            "name": name,
            "of": self.table.provider,
            "type": values.kind(),
            "allowed": values.allowed(),
            "unit": values.unit(),
            "default": values.default(),
            "value": self.value,
            "origin": self.origin,
            "trouble": self.trouble,
            "meaning": meaning,
        })
    }

    fn line(&self, name: &str) -> String {
        let SettingReport { setting, value, origin, .. } = self;
        let unit = setting.values.unit();
        let mut text = format!("{name}={value}");
        if !unit.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            let _ = write!(text, " {unit}");
        }
        let _ = write!(text, "  ({origin}");
        if *origin != "default" {
            let _ = write!(text, "; default {}", setting.values.default());
        }
        text += ")\n";
        if let Some(trouble) = &self.trouble {
            let _ = writeln!(text, "    {trouble}; the default is used");
        }
        text
    }
}

/// An environment variable that is set but has no effect.
pub(crate) struct IneffectiveVariable {
    /// Name without control characters.
    pub(crate) name: String,
    nearest: Option<&'static str>,
    instead: Option<&'static str>,
}

impl IneffectiveVariable {
    /// Variables of this process that have no effect.
    pub(crate) fn all() -> Vec<Self> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let idle = names.filter_map(|name| {
            let (nearest, instead) = match look_up(&name) {
                VariableClass::NoEffect(instead) => (None, Some(instead)),
                VariableClass::Unknown | VariableClass::ProviderPrefix(_) => (nearest(&name), None),
                VariableClass::Read(..) | VariableClass::NotForLibraries => return None,
            };
            Some(IneffectiveVariable { name: name.escape_debug().to_string(), nearest, instead })
        });
        idle.collect()
    }

    /// Remedy for the user.
    pub(crate) fn remedy(&self) -> String {
        match (self.nearest, self.instead) {
            (Some(nearest), _) => format!("the nearest known name is {nearest}"),
            (None, Some(instead)) => format!("use {instead}"),
            (None, None) => "no known name is similar; datinfo -e lists all names".to_owned(),
        }
    }
}

/// Prints every variable with its value in effect, and the variables that have no effect.
pub(crate) fn environment(options: &Options) -> crate::Result {
    let settings =
        ALL.iter().flat_map(|table| table.settings.iter().map(|setting| SettingReport::of(table, setting, &[])));
    let settings: Vec<SettingReport> = settings.filter(|report| !report.setting.variable.is_empty()).collect();
    let unknown = IneffectiveVariable::all();
    if options.json {
        let json = |idle: &IneffectiveVariable| json!({"variable": idle.name, "nearest": idle.nearest, "instead": idle.instead});
        let unknown: Vec<Value> = unknown.iter().map(json).collect();
        let settings: Vec<Value> = settings.iter().map(SettingReport::json).collect();
        print_json(&json!({"variables": settings, "unknown": unknown}));
        return Ok(true);
    }
    let mut text = String::new();
    for report in &settings {
        report.line(report.setting.variable).lines().for_each(|line| text += &wrapped(line, 0));
        let (kind, allowed) = (report.setting.values.kind(), report.setting.values.allowed());
        let of = report.table.provider;
        text += &wrapped(&format!("{of}, {kind} ({allowed}): {}", report.setting.meaning), 4);
    }
    for idle in unknown {
        let _ = writeln!(text, "{} is set and has no effect; {}", idle.name, idle.remedy());
    }
    print_output(&text);
    Ok(true)
}

/// Library names of the C implementation, each with its connection manager. If no other package has such a library, its
/// name is a link to this project's verbs provider, which then uses that connection manager.
const OTHER_NAMES: [(&str, &str); 4] =
    [("libdaplcma", "rdma"), ("libdaplscm", "socket"), ("libdaplofa", "rdma"), ("libdaploscm", "socket2")];

/// The settings table for a library's name, if the library is or may be ([`OTHER_NAMES`]) a provider of this project.
fn table_of(library: &str) -> Option<&'static SettingsTable> {
    let begins = |start| is_library(library, start);
    match () {
        () if begins("libdaplsm") => Some(&SM),
        () if begins("libdaplusnic") => Some(&USNIC),
        () if begins("libdaplverbs") || OTHER_NAMES.iter().any(|(name, _)| begins(name)) => Some(&VERBS),
        () => None,
    }
}

/// Whether the file name in `path` is `name`, followed by `.so` and any version.
fn is_library(path: &str, name: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".so"))
}

/// Whether a library has the name of one of this project's providers, which are thread-safe even if their line states
/// `nonthreadsafe`.
pub(crate) fn is_ours(library: &str) -> bool {
    table_of(library).is_some() && !OTHER_NAMES.iter().any(|(name, _)| is_library(library, name))
}

/// The settings of an adapter, and the unknown words in its `ia_params`.
fn settings_of(entry: &ReportedEntry) -> (Vec<SettingReport>, Vec<String>) {
    let Some(table) = table_of(&entry.library) else { return (Vec::new(), Vec::new()) };
    let params = String::from_utf8_lossy(&crate::probe::unescaped(&entry.params)).into_owned();
    let is_common = |word: &str| word.split_once('=').is_some_and(|(name, _)| DAPL.named(name).is_some());
    let (common, own): (Vec<&str>, Vec<&str>) = params.split_ascii_whitespace().partition(|word| is_common(word));
    let (common, _) = DAPL.split(&common.join(" "));
    let (own, mut odd) = table.split(&own.join(" "));
    if table.provider == VERBS.provider {
        // In `ia_params` of the verbs provider, words without `=` name the device and port.
        odd.retain(|word| word.contains('='));
    }
    let settings = |table: &'static SettingsTable, words: &[(&'static str, String)]| -> Vec<SettingReport> {
        table.settings.iter().map(|setting| SettingReport::of(table, setting, words)).collect()
    };
    let mut all = settings(table, &own);
    let manager = OTHER_NAMES.iter().find(|(name, manager)| *manager != "rdma" && is_library(&entry.library, name));
    if let Some((_, manager)) = manager {
        let cm = all.iter_mut().find(|report| report.setting.name == "cm" && report.origin == "default");
        cm.into_iter().for_each(|cm| (cm.value, cm.origin) = ((*manager).to_owned(), "library"));
    }
    all.extend(settings(&DAPL, &common));
    (all, odd)
}

/// Errors in an adapter's `ia_params`, as pairs: the error, and its consequence or a remedy.
pub(crate) fn param_troubles(entry: &ReportedEntry) -> Vec<(String, String)> {
    let Some(table) = table_of(&entry.library) else { return Vec::new() };
    let (settings, odd) = settings_of(entry);
    let wrong = settings.iter().filter_map(|report| {
        let trouble = report.trouble.as_ref()?.strip_prefix("ia_params: ")?;
        Some((format!("{}: {trouble}", report.setting.name), "the default is used".to_owned()))
    });
    let unknown = odd.iter().map(|word| {
        let found = format!("\"{}\" is not understood", word.escape_debug());
        (found, format!("datinfo -c shows the settings of {}", table.provider))
    });
    let is_nameless =
        table.provider == VERBS.provider && entry.params.split_ascii_whitespace().all(|word| word.contains('='));
    let nameless = is_nameless.then(|| {
        let allowed = "begin with a device and its port (\"mlx5_0 1\"), a network device or an address";
        ("names no adapter".to_owned(), allowed.to_owned())
    });
    wrong.chain(unknown).chain(nameless).collect()
}

/// Prints the files of the registry and the settings of each adapter.
pub(crate) fn configuration(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    let (entries, others) = if options.json { (registry.wanted(options), None) } else { registry.openable(options) };
    if options.json {
        let adapters: Vec<Value> = entries
            .iter()
            .map(|entry| {
                let (settings, odd) = settings_of(entry);
                let mut value = json!(entry);
                value["settings"] = settings.iter().map(SettingReport::json).collect();
                value["not_understood"] = json!(odd);
                value
            })
            .collect();
        print_json(&json!({
            "origin": registry.origin,
            "libdat": {"version": registry.version, "files": registry.files},
            "unreadable": registry.unreadable,
            "adapters": adapters,
        }));
        return Ok(!entries.is_empty());
    }
    let mut text =
        format!("registry: {}\n", registry.origin.as_deref().unwrap_or("unknown, since libdat is of another project"));
    for file in &registry.files {
        let _ = writeln!(text, "libdat: {file} {}", registry.version.as_deref().unwrap_or("(of another project)"));
    }
    registry.unreadable.iter().for_each(|trouble| text += &format!("{trouble}\n"));
    for entry in &entries {
        let _ = writeln!(text, "{}  {}  {} \"{}\"", entry.name, entry.id, entry.library, entry.params);
        let (settings, odd) = settings_of(entry);
        for report in &settings {
            let name = if report.setting.name.is_empty() { report.setting.variable } else { report.setting.name };
            text += &format!("  {}", report.line(name));
        }
        for word in odd {
            let _ = writeln!(text, "  \"{}\" in its ia_params is not understood", word.escape_debug());
        }
    }
    others.iter().for_each(|others| text += &format!("{others}\n"));
    print_output(&text);
    Ok(!entries.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(library: &str, params: &str) -> ReportedEntry {
        ReportedEntry { library: library.to_owned(), params: params.to_owned(), ..ReportedEntry::default() }
    }

    fn report<'a>(settings: &'a [SettingReport], name: &str) -> &'a SettingReport {
        settings.iter().find(|report| report.setting.name == name).unwrap()
    }

    #[test]
    fn ia_params_of_sm_are_shown_with_value_origin_and_errors() {
        let (settings, odd) =
            settings_of(&entry("/x/libdaplsm.so.1", "/dev/shm/a rma=cma io_trc=0x40 give_up_ms=1 colour=red"));
        let seen = |name: &str| (report(&settings, name).value.as_str(), report(&settings, name).origin);
        assert_eq!(seen("dir"), ("/dev/shm/a", "ia_params"));
        assert_eq!((seen("rma"), seen("io_trc")), (("cma", "ia_params"), ("64", "ia_params")));
        assert_eq!(seen("give_up_ms"), ("60000", "default"));
        assert!(
            report(&settings, "give_up_ms").trouble.as_ref().is_some_and(|why| why.contains("from 1000 to 3600000"))
        );
        assert_eq!(odd, ["colour=red"]);
    }

    #[test]
    fn errors_in_parameters_are_reported_for_the_line() {
        let found = |library: &str, params: &str| -> Vec<String> {
            param_troubles(&entry(library, params)).into_iter().map(|(found, _)| found).collect()
        };
        let troubles = found("libdaplsm.so.1", "give_up_ms=1 colour=red");
        assert_eq!(
            troubles,
            ["give_up_ms: \"1\" is not a number from 1000 to 3600000", "\"colour=red\" is not understood"]
        );
        assert_eq!(found("libdaplverbs.so.1", "cm=socket"), ["names no adapter"]);
        assert!(found("libdaplverbs.so.1", "mlx5_0 1").is_empty() && found("libother.so.1", "x=y").is_empty());
    }

    #[test]
    fn verbs_parameters_name_device_and_port_by_position() {
        let (settings, odd) = settings_of(&entry("libdaplcma.so", "mlx5_0 1 cm=socket x=y"));
        assert_eq!((report(&settings, "cm").value.as_str(), odd), ("socket", vec!["x=y".to_owned()]));
        let manager = |library, params| {
            let (settings, _) = settings_of(&entry(library, params));
            let cm = report(&settings, "cm");
            (cm.value.clone(), cm.origin)
        };
        assert_eq!(manager("/usr/lib/libdaplscm.so.1", "ib0 0"), ("socket".to_owned(), "library"));
        assert_eq!(manager("libdaplscm.so.1", "ib0 0 cm=none"), ("none".to_owned(), "ia_params"));
        assert_eq!(manager("libdaplcma.so.1", "ib0 0"), ("rdma".to_owned(), "default"));
        assert_eq!(manager("libdaploscm.so.2", "ib0 0"), ("socket2".to_owned(), "library"));
        assert_eq!(manager("libdaploscm.so.2", "ib0 0 cm=socket"), ("socket".to_owned(), "ia_params"));
        assert_eq!(manager("libdaplofa.so.2", "ib0 0"), ("rdma".to_owned(), "default"));
        assert!(settings_of(&entry("libdaplother.so.1", "a b")).0.is_empty());
    }
}

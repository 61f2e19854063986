use super::*;

/// What no provider says of all its users: a generic scheme, or a payload that the user writes.
const OBJECT_IS_THE_USERS: [&str; 2] = ["standard_webhooks", "hmac"];

#[test]
fn every_file_is_listed_under_its_name() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("presets");
    let files = std::fs::read_dir(folder).expect("the folder of presets");
    let mut names: Vec<_> = files.map(|f| f.expect("an entry").path().file_stem().map(|n| n.to_owned())).collect();
    names.sort();
    let listed: Vec<_> = Preset::names().map(|name| Some(name.into())).collect();
    assert_eq!(names, listed);
}

#[test]
fn every_preset_is_whole() {
    let mut mistakes = Vec::new();
    for (name, text, _) in FILES {
        let preset: Preset = match document::read(text, &[], |_| Vec::new()) {
            Ok(preset) => preset,
            Err(problems) => {
                mistakes.extend(problems.into_iter().map(|p| format!("{name}: {}: {}", p.path, p.message)));
                continue;
            }
        };
        let missing = preset.declare.problems().into_iter();
        let missing = missing.filter(|p| !(p.path == "object" && OBJECT_IS_THE_USERS.contains(name)));
        mistakes.extend(missing.map(|p| format!("{name}: {}: {}", p.path, p.message)));
        if preset.name != *name || !preset.docs.starts_with("https://") || preset.notes.trim().is_empty() {
            mistakes.push(format!("{name}: name, docs or notes"));
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn dedupe_windows_outlive_retries() {
    for preset in Preset::all() {
        let window = preset.dedupe_window_s();
        let retries = preset.delivery.retry_window_s.unwrap_or(0);
        assert!(window > retries, "{}: {window} s for retries of {retries} s", preset.name);
    }
}

#[test]
fn every_preset_has_an_example() {
    for name in Preset::names() {
        let example = Preset::example(name).expect("listed with its preset");
        assert!(!example.requests.is_empty() && !example.source.is_empty(), "{name}");
    }
}

//! What a preset says, for people: on the terminal, and as the table of all presets in docs/presets.md.

use std::fmt::Write as _;

use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::expression::Expression;
use seriatim_schemas::preset::{Basis, Preset, Source, State};
use seriatim_schemas::verification::Recipe;

const DAY_S: u64 = 24 * 3600;

/// One line of the list of presets.
pub struct Summary {
    pub name: String,
    pub title: String,
    pub verified_by: String,
    pub order: String,
    pub retries: String,
    pub state: &'static str,
}

pub fn summary(preset: &Preset) -> Summary {
    let version = preset.declare.version.as_ref().or_else(|| {
        let of_types = preset.declare.events.iter().flatten();
        of_types.into_iter().find_map(|rule| rule.version.as_ref())
    });
    Summary {
        name: preset.name.clone(),
        title: preset.title.clone(),
        verified_by: recipes(&preset.declare).iter().map(algorithm).collect::<Vec<_>>().join(" or "),
        order: version.map_or("each event counts".to_owned(), |rule| name_of(rule.kind)),
        retries: match preset.delivery.retry_window_s {
            Some(0) => "never".to_owned(),
            Some(seconds) => marked(duration(seconds), preset.basis.delivery),
            None => "unknown".to_owned(),
        },
        state: state(preset.advice.state),
    }
}

/// A page about one preset; its file stands at the end.
pub fn page(preset: &Preset, text: &str) -> String {
    let declare = &preset.declare;
    let mut out = format!("{} (preset {})\n{}\n\n{}\n\n", preset.title, preset.name, preset.docs, preset.notes.trim());
    let mut line = |name: &str, value: &str| _ = writeln!(out, "{name:<12} {value}");
    line("needs", &needs(declare));
    for recipe in recipes(declare) {
        let window = recipe.timestamp.as_ref().map(|t| {
            let ahead = t.future_max_s.map_or("any time".to_owned(), |s| format!("{s} s"));
            format!("; at most {} s old, {ahead} ahead", t.past_max_s)
        });
        line("verified by", &format!("{} in {}{}", algorithm(recipe), recipe.signature, window.unwrap_or_default()));
    }
    line("event id", &declare.event_id.as_ref().map_or("the digest of the body".to_owned(), written));
    line("event type", &declare.event_type.as_ref().map_or("none".to_owned(), written));
    line("object", &declare.object.as_ref().map_or("by event type, see below".to_owned(), written));
    match &declare.version {
        Some(rule) => line("version", &format!("{} ({})", written(&rule.from), name_of(rule.kind))),
        None if declare.events.iter().flatten().any(|rule| rule.version.is_some()) => {
            line("version", "by event type, see below")
        }
        None => line("version", "none: each event counts"),
    }
    if let Some(fetch) = &declare.fetch {
        let types = fetch.types.iter().map(|pattern| pattern.0.as_str()).collect::<Vec<_>>().join(", ");
        let from = format!("{} (types {types}; where the source says fetch)", fetch.url);
        line("fetched from", &marked(from, preset.basis.fetch.unwrap_or(Source::Recall)));
    }
    line("ids kept", &duration(preset.clone().declaration().dedupe_window_s()));
    let answer = declare.answer.as_ref().map_or("200".to_owned(), |a| format!("{} {}", a.status, a.body));
    line("answered by", answer.trim());
    let sure = preset.basis.delivery;
    let delivery = &preset.delivery;
    let waits = delivery.timeout_s.map(|s| format!("{s} s"));
    for (name, fact) in [
        ("retries", &delivery.retry),
        ("waits", &waits),
        ("takes", &delivery.success),
        ("order", &delivery.ordering),
        ("again", &delivery.redelivery),
        ("switches off", &delivery.disables),
    ] {
        if let Some(fact) = fact {
            line(name, &marked(fact.clone(), sure));
        }
    }
    line("for state", &format!("{}: {}", state(preset.advice.state), preset.advice.why));
    line("based on", &basis(&preset.basis));
    format!("{out}\n{text}")
}

fn recipes(declare: &Declaration) -> &[Recipe] {
    declare.verify.as_ref().map_or(&[], |verify| &verify.0)
}

/// What a source must say beside a secret.
fn more(declare: &Declaration) -> Vec<String> {
    let url = declare.needs_url().then(|| "public_url".to_owned());
    let stores = declare.handshakes.iter().flatten().any(|h| h.store.is_some());
    let file = stores.then(|| "a handshake file".to_owned());
    let settings = declare.setting_names().into_iter().map(str::to_owned);
    let object = declare.object.is_none() && declare.events.is_none();
    url.into_iter().chain(file).chain(settings).chain(object.then(|| "object".to_owned())).collect()
}

fn needs(declare: &Declaration) -> String {
    let fetches = recipes(declare).iter().any(|recipe| recipe.certificate.is_some());
    let secret = if fetches { "nothing secret: the signer's certificate is fetched" } else { "secrets" };
    std::iter::once(secret.to_owned()).chain(more(declare)).collect::<Vec<_>>().join(", ")
}

fn algorithm(recipe: &Recipe) -> String {
    name_of(recipe.algorithm)
}

/// The name that the declaration gives a kind or an algorithm.
fn name_of(value: impl serde::Serialize) -> String {
    let text = serde_json::to_value(value).ok();
    text.and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

fn written(expression: &Expression) -> String {
    match expression {
        Expression::One(selector) => selector.to_string(),
        Expression::FirstOf(all) => all.iter().map(written).collect::<Vec<_>>().join(", else "),
        Expression::Join { parts, with } => {
            let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
            parts.join(&format!(" {with:?} "))
        }
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Fetch => "fetch",
        State::Version => "version",
        State::Each => "each",
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        s if s >= 2 * DAY_S && s.is_multiple_of(DAY_S) => format!("{} days", s / DAY_S),
        s if s >= 3600 => format!("{} h", s.div_ceil(3600)),
        s if s >= 60 => format!("{} min", s.div_ceil(60)),
        s => format!("{s} s"),
    }
}

fn marked(text: String, basis: Source) -> String {
    if basis == Source::Recall { format!("{text} (unconfirmed)") } else { text }
}

fn basis(basis: &Basis) -> String {
    let word = |source: Source| match source {
        Source::Read => "read in the provider's documents or code",
        Source::Recall => "from memory, unconfirmed",
    };
    format!("signature: {}; delivery: {}; fields: {}", word(basis.signature), word(basis.delivery), word(basis.fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/presets.md.
    fn document(presets: &[Preset]) -> String {
        let mut out = "# Presets\n\n\
            Made from `schemas/presets` by a test; do not edit. `seriatim source presets NAME` explains one and prints its file.\n\n\
            \"fetch\" recommends to fetch the object's current state once an API secret is given (money and contracts, and events \
            that carry no state), \"version\" that the version gate decides, \"each\" that every event counts. \
            What is marked with ? was not confirmed in the provider's documentation.\n\n\
            | preset | provider | verified by | needs beside a secret | order by | tries again for | waits | takes | state |\n\
            |---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for preset in presets {
            let row = summary(preset);
            let sure = preset.basis.delivery;
            let waits = preset.delivery.timeout_s.map_or("".to_owned(), |s| short(format!("{s} s"), sure));
            let takes = preset.delivery.success.clone().map_or("".to_owned(), |s| short(s, sure));
            let retries = match preset.delivery.retry_window_s {
                Some(0) => short("never".to_owned(), sure),
                Some(seconds) => short(duration(seconds), sure),
                None => "".to_owned(),
            };
            let signature = short(row.verified_by, preset.basis.signature);
            let _ = writeln!(
                out,
                "| `{}` | [{}]({}) | {signature} | {} | {} | {retries} | {waits} | {takes} | {} |",
                row.name,
                row.title,
                preset.docs,
                more(&preset.declare).join(", "),
                short(row.order, preset.basis.fields),
                row.state
            );
        }
        out
    }

    fn short(text: String, basis: Source) -> String {
        if basis == Source::Recall { format!("{text} ?") } else { text }
    }

    #[test]
    fn the_table_of_presets_is_current() {
        let wanted = document(&Preset::all());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/presets.md");
        if std::env::var_os("SERIATIM_TEST_WRITE").is_some() {
            std::fs::write(path, &wanted).expect("written");
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == wanted, "run the tests once with SERIATIM_TEST_WRITE=1 and commit docs/presets.md");
    }

    #[test]
    fn what_is_from_memory_is_said_to_be() {
        let preset = Preset::named("xero").expect("a preset");
        let page = page(&preset, "");
        assert!(page.contains("retries      about 24 hours, less and less often (unconfirmed)"), "{page}");
        assert!(page.contains("for state    fetch: "), "{page}");
    }
}

use super::*;
use crate::document;
use crate::preset::Preset;
use crate::problem::Problem;
use crate::source::{SecretRef, Source, SourceConfig};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: Vec<SourceConfig>,
}

fn read(text: &str) -> Result<Vec<Source>, Vec<Problem>> {
    let problems = |file: &File| {
        let of = |(i, s): (usize, &SourceConfig)| {
            s.resolve().err().into_iter().flatten().map(move |p| p.under(&format!("source.{i}")))
        };
        file.source.iter().enumerate().flat_map(of).collect()
    };
    let file = document::read(text, &[], problems)?;
    Ok(file.source.iter().map(|s| s.resolve().expect("validated")).collect())
}

fn paths(text: &str) -> Vec<String> {
    read(text).expect_err("mistakes").into_iter().map(|p| format!("{}: {}", p.path, p.message)).collect()
}

#[test]
fn a_preset_and_a_secret_make_a_source() {
    let text = "[[source]]\ntenant = \"acme\"\nname = \"billing\"\npreset = \"stripe\"\nsecrets = [{ env = \"S\" }]\n";
    let sources = read(text).expect("valid");
    assert_eq!(sources[0].declaration.plan("customer.updated").mode, Mode::Snapshot);
    assert_eq!(sources[0].revision.len(), 16);
}

/// `st_decl` in stored records names a declaration: the same declaration must keep its name.
#[test]
fn revisions_are_frozen() {
    assert_eq!(Declaration::default().revision(), "44136fa355b3678a");
}

#[test]
fn every_mistake_is_named_with_its_remedy() {
    let text = r#"
[[source]]
tenant = ""
name = "a"
preset = "strype"
secrets = []

[[source]]
tenant = "acme"
name = "b"
preset = "hmac"
secrets = [{ value = "" }, { vault = "x" }]

[[source]]
tenant = "acme"
name = "c"
preset = "hmac"
secrets = [{ value = "x" }]
[source.declare]
mode = "snapshot"
objekt = "body:/id"
answer = { status = 404 }
version = { from = "id", kind = "integr" }
[source.declare.verify]
algorithm = "hmac-sha256"
signature = "const:x"
encoding = "hex"
signed = "{timestamp}.{boby}"
"#;
    let found = paths(text).join("\n");
    for expected in [
        "source.0.tenant: is empty",
        "source.0.preset: \"strype\" is unknown; did you mean stripe?",
        "source.0.secrets: is empty: without a secret every request would be refused",
        "source.1.secrets.0: is empty",
        "source.1.declare.object: is missing",
        "unknown variant `vault`",
        "unknown field `objekt`",
        "names no place",
        "source.2.declare.answer.status: is 404",
        "source.2.declare.verify.signature: must stand in the request",
        "{boby}",
    ] {
        assert!(found.contains(expected), "{expected} is not in\n{found}");
    }
}

#[test]
fn what_differs_by_type_is_taken_from_the_first_rule_that_matches() {
    let github = Preset::named("github").expect("exists").declare;
    assert_eq!(github.plan("pull_request.closed").mode, Mode::Snapshot);
    assert_eq!(github.plan("ping").mode, Mode::Delta);
    assert_eq!(github.plan("star.created").mode, Mode::Delta);
    assert!(github.plan("star.created").object.is_some());
    assert!(github.rank("issues.deleted") > github.rank("issues.edited"));
    assert!(github.is_tombstone("issues.deleted"));
}

#[test]
fn versions_of_one_source_share_a_kind() {
    let text = r#"
[[source]]
tenant = "a"
name = "b"
preset = "hmac"
secrets = [{ value = "x" }]
[source.declare]
object = "body:/id"
version = { from = "body:/v", kind = "integer" }
events = [{ type = "x.*", version = { from = "body:/at", kind = "rfc3339" } }]
"#;
    let found = paths(text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("source.0.declare.events.0.version.kind: differs"), "{found:?}");
}

#[test]
fn a_header_counts_as_signed_only_where_every_recipe_signs_it() {
    let verify = Preset::named("standard_webhooks").expect("exists").declare.verify.expect("verifies");
    assert_eq!(verify.signed_headers(), ["webhook-id"]);
    let mut other = verify.0[0].clone();
    other.signed = Some("{body}".parse().expect("a template"));
    assert!(Verify(vec![verify.0[0].clone(), other]).signed_headers().is_empty());
}

#[test]
fn settings_and_the_public_url_are_asked_for_where_they_are_read() {
    let source = |extra: &str| {
        format!(
            "[[source]]\ntenant = \"a\"\nname = \"b\"\npreset = \"hmac\"\nsecrets = [{{ value = \"x\" }}]\n{extra}\n\
             [source.declare]\nobject = \"body:/id\"\n[source.declare.verify]\nalgorithm = \"hmac-sha1\"\n\
             signature = \"header:X-Sign\"\nencoding = \"base64\"\nsigned = \"{{url}}{{body}}{{setting:app}}\"\n"
        )
    };
    let found = paths(&source("")).join("\n");
    assert!(found.contains("source.0.settings.app: is missing") && found.contains("source.0.public_url: is missing"));
    let good = "public_url = \"https://hooks.example.com/in\"\nsettings = { app = \"1\" }";
    assert!(read(&source(good)).is_ok());
    let found = paths(&source(&good.replace("app", "ap").replace("/in", "/in?x"))).join("\n");
    assert!(found.contains("settings.ap: is read by nothing") && found.contains("is no URL"), "{found}");
}

#[test]
fn secrets_are_never_printed() {
    let secret = SecretRef::Value("whsec_1".into());
    assert_eq!(format!("{secret:?}"), "value (hidden)");
}

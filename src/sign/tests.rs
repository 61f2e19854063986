//! What `send` signs, verification believes: for every preset, by its examples.

use std::collections::BTreeMap;

use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::preset::{ExampleRequest, Preset};
use seriatim_schemas::source::{SecretRef, SourceConfig};

use super::*;

/// Its algorithm is out of use for new signatures, so nobody but the provider makes them.
const UNSIGNABLE: [&str; 1] = ["ebay"];
/// 32 hex digits are base64 as well: a key by any steps.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn source(preset: &str, secrets: Vec<SecretRef>) -> Source {
    let declaration = Preset::named(preset).expect("a preset").declare;
    let settings = declaration.setting_names().into_iter().map(|name| (name.to_owned(), "x".to_owned()));
    let is_open = declaration.object.is_none() && declaration.events.is_none();
    let object = is_open.then(|| serde_json::from_value("const:object".into()).expect("an expression"));
    let config = SourceConfig {
        tenant: "t".to_owned(),
        name: preset.to_owned(),
        preset: Some(preset.to_owned()),
        secrets,
        public_url: Some("https://hooks.example.com/in/t/s".to_owned()),
        settings: settings.collect::<BTreeMap<_, _>>(),
        sinks: None,
        fetch: None,
        declare: Declaration { object, ..Declaration::default() },
    };
    config.resolve().unwrap_or_else(|problems| panic!("{preset}: {problems:?}"))
}

/// A source whose secret is what the signer's side needs, and the signer.
fn pair(preset: &str, folder: &std::path::Path) -> anyhow::Result<(Source, Signer)> {
    // Beside public keys, a secret is known by its prefix.
    let secret = if preset == "standard_webhooks" { format!("whsec_{SECRET}") } else { SECRET.to_owned() };
    let draft = source(preset, vec![SecretRef::Value(secret.clone())]);
    let recipe = &draft.declaration.verify.as_ref().expect("verifies").0[0];
    let by_secret = recipe
        .jwt
        .as_ref()
        .is_some_and(|rule| rule.algorithms.contains(&seriatim_schemas::verification::JwtAlgorithm::HS256));
    if !recipe.algorithm.is_public() && (recipe.algorithm != Algorithm::Jwt || by_secret) {
        let signer = Signer::new(&draft, &secret, None)?;
        return Ok((draft, signer));
    }
    let key = PrivateKey::open(&folder.join(preset), recipe)?;
    let source = source(preset, vec![SecretRef::Value(key.public(recipe)?)]);
    let signer = Signer::new(&source, "", Some(key))?;
    Ok((source, signer))
}

fn outgoing(request: &ExampleRequest) -> Outgoing {
    Outgoing {
        method: request.method.clone(),
        query: request.query.clone(),
        headers: request.headers.clone().into_iter().collect(),
        body: request.body.clone().into_bytes(),
    }
}

/// Whether the request, or each item of it, is believed.
fn is_believed(source: &Source, request: &Outgoing, now: Timestamp) -> Result<(), String> {
    let verify = source.declaration.verify.clone().expect("verifies");
    let verifier = Verifier::new(verify, &source.secrets).expect("a key");
    let verifier = verifier.with_settings(source.settings.clone(), source.public_url.clone());
    let mut bodies = vec![request.body.clone()];
    if let Some(batch) = source.declaration.batch.as_ref().filter(|batch| batch.verify_each) {
        let mut document: Value = serde_json::from_slice(&request.body).expect("JSON");
        bodies.clear();
        for_each_item(&mut document, &batch.items[0].0, &mut |item| {
            bodies.push(serde_json::to_vec(item)?);
            Ok(())
        })
        .expect("items");
    }
    for body in bodies {
        let alone = Outgoing { body, ..request.clone() };
        let headers = header_map(&alone).expect("headers");
        let verified = verifier.verify(&view(&alone, &headers, &verifier), now);
        verified.map_err(|refusal| format!("{refusal}: {alone:?}"))?;
    }
    Ok(())
}

#[test]
fn what_is_signed_for_a_preset_is_believed() {
    let folder = tempfile::tempdir().expect("a folder");
    let now = Timestamp::now();
    let (mut failed, mut count) = (Vec::new(), 0);
    for preset in Preset::names() {
        let (source, signer) = match pair(preset, folder.path()) {
            Ok(pair) => pair,
            Err(error) => {
                failed.push(format!("{preset}: {error:#}"));
                continue;
            }
        };
        for request in Preset::example(preset).expect("an example").requests {
            let mut request = outgoing(&request);
            let signed = signer.sign(&mut request, now).map_err(|error| format!("{error:#}"));
            match signed.and_then(|()| is_believed(&source, &request, now)) {
                Ok(()) => count += 1,
                Err(_) if UNSIGNABLE.contains(&preset) => {}
                Err(error) => failed.push(format!("{preset}: {error}")),
            }
        }
    }
    println!("{count} requests");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

//! Secrets change while requests come in: nothing good is refused, nothing old is believed, and whoever asks why is
//! told without hearing a secret.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Engine, Role, System, get_text, post, sign, wait_until};

const OLD: &str = "old-secret-4f2a9c";
const NEW: &str = "new-secret-81d07e";
const FIELDS: &str = "[source.declare]\nobject = 'body:/o'\n";

/// Puts a version of the mounted secrets in place as Kubernetes does: a link that is swapped for another.
fn mount(folder: &Path, version: &str, current: &str, previous: &str) {
    let files = folder.join(version);
    std::fs::create_dir_all(&files).expect("a folder");
    std::fs::write(files.join("current"), format!("{current}\n")).expect("written");
    std::fs::write(files.join("previous"), format!("{previous}\n")).expect("written");
    let draft = folder.join("..data_tmp");
    symlink(&files, &draft).expect("a link");
    std::fs::rename(&draft, folder.join("..data")).expect("swapped");
}

fn source(folder: &Path) -> String {
    let file = |name: &str| format!("{{ file = \"{}\" }}", folder.join("..data").join(name).display());
    format!(
        "[[source]]\ntenant = \"acme\"\nname = \"shop\"\npreset = \"hmac\"\nsecrets = [{}, {}]\n{FIELDS}",
        file("current"),
        file("previous")
    )
}

fn send(url: &str, secret: &str, n: u64) -> u16 {
    let body = format!("{{\"id\":\"evt_{n}\",\"o\":\"{}\"}}", n % 7);
    post(url, &[("x-signature", &sign(secret, body.as_bytes()))], body.as_bytes())
}

fn accepts(url: &str, secret: &str) -> bool {
    send(url, secret, 0) == 200
}

#[test]
fn a_rotation_under_load_refuses_nothing_good_and_believes_nothing_old() {
    let folder = tempfile::tempdir().expect("a folder");
    mount(folder.path(), "v1", OLD, OLD);
    let mut system = System::new(Engine::Embedded, &source(folder.path()));
    system.start(Role::All);
    let url = system.url("acme", "shop");
    let (stop, rotated) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sent, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for sender in 0..4_u64 {
            let (url, stop, rotated, sent, refused) = (&url, &stop, &rotated, &sent, &refused);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let secret = if rotated.load(Ordering::SeqCst) { NEW } else { OLD };
                    let status = send(url, secret, 1_000_000 * (sender + 1) + n);
                    sent.fetch_add(1, Ordering::SeqCst);
                    refused.fetch_add(u64::from(status != 200), Ordering::SeqCst);
                }
            });
        }
        // By the files alone: both are live, then the senders change, then the old one goes.
        mount(folder.path(), "v2", NEW, OLD);
        wait_until("the new secret is live", || accepts(&url, NEW));
        rotated.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(500));
        mount(folder.path(), "v3", NEW, NEW);
        // On request.
        let pid = system.pid(Role::All).to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
        wait_until("the old secret is refused", || !accepts(&url, OLD));
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::SeqCst);
    });
    let (sent, refused) = (sent.into_inner(), refused.into_inner());
    println!("{sent} good requests over two changes of secrets, {refused} refused");
    assert_eq!(refused, 0);
    assert!(sent > 100, "{sent}");
    check_last_use(&system);
    check_refusals(&system);
}

/// The name of the secret that is in use, and when it last was.
fn check_last_use(system: &System) {
    let rows = system.json(&["source", "secrets"]);
    let name = rows[0]["name"].as_str().expect("a name");
    let metrics = get_text(&format!("http://127.0.0.1:{}/metrics", system.admin)).expect("metrics");
    let line = metrics.lines().find(|l| l.starts_with("seriatim_ingest_secret_last_used") && l.contains(name));
    let at: f64 = line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    assert!((now - at).abs() < 60.0, "{at}, now {now}");
}

fn check_refusals(system: &System) {
    let told = system.cli(&["source", "refused", "acme", "shop"]);
    let told = String::from_utf8(told.stdout).expect("text");
    for expected in ["signature_mismatch", "did not make it", "it does not verify", "{body} is "] {
        assert!(told.contains(expected), "{expected} is not in\n{told}");
    }
    assert!(!told.contains(OLD) && !told.contains(NEW), "{told}");
    let unknown = system.cli(&["source", "refused", "acme", "other"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(!accepts(&system.url("acme", "sham"), NEW));
    let unknown = system.json(&["source", "refused"]);
    assert_eq!(unknown[0]["target"], "/in/acme/sham");
    assert_eq!(unknown[0]["reason"], "unknown_source");
}

#[test]
fn a_file_that_is_gone_leaves_the_old_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    mount(folder.path(), "v1", OLD, OLD);
    let mut system = System::new(Engine::Embedded, &source(folder.path()));
    system.start(Role::All);
    let url = system.url("acme", "shop");
    for broken in ["", "gone"] {
        let current = folder.path().join("v1").join("current");
        match broken {
            "gone" => std::fs::remove_file(current).expect("removed"),
            text => std::fs::write(current, text).expect("written"),
        }
        let pid = system.pid(Role::All).to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
        wait_until("told", || {
            std::fs::read_to_string(system.path("all.log")).is_ok_and(|log| log.contains("the old ones stay"))
        });
        assert!(accepts(&url, OLD), "{broken:?}");
    }
}

/// Each cause, and what the diagnosis says of it.
#[test]
fn a_saved_request_is_explained_step_by_step() {
    let text = format!(
        "{}[[source]]\ntenant = \"acme\"\nname = \"github\"\npreset = \"github\"\nsecrets = [{{ value = \"{NEW}\" }}]\n",
        "[[source]]\ntenant = \"acme\"\nname = \"stripe\"\npreset = \"stripe\"\nsecrets = [{ value = \"whsec_1\" }]\n"
    );
    let system = System::new(Engine::Embedded, &text);
    let explain = |source: &str, head: &str, body: &str| {
        let path = system.path("request.txt");
        std::fs::write(&path, format!("POST /in/acme/{source} HTTP/1.1\r\n{head}\r\n\r\n{body}")).expect("written");
        let output = system.cli(&["verify", "acme", source, path.to_str().expect("text")]);
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let body = "{\"id\": 1}";
    let good = format!("X-Hub-Signature-256: sha256={}", sign(NEW, body.as_bytes()));
    assert_eq!(explain("github", &good, body).0, Some(0));
    let base64 = "X-Hub-Signature-256: sha256=q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=";
    let table = [
        ("github", good.clone(), format!("{body}\n"), "it would hold if the body ended without white space"),
        (
            "github",
            format!("X-Hub-Signature-256: sha256={}", sign(NEW, b"{\"id\":1}")),
            body.to_owned(),
            "without white space",
        ),
        ("github", good.clone(), "{\"id\": 2}".to_owned(), "did not make it"),
        ("github", "X-Other: 1".to_owned(), body.to_owned(), "nothing at header:X-Hub-Signature-256"),
        ("github", base64.to_owned(), body.to_owned(), "it looks like base64"),
        ("stripe", format!("Stripe-Signature: t=1767225600,v1={}", "0".repeat(64)), body.to_owned(), "too old"),
    ];
    for (source, head, body, expected) in table {
        let (code, told) = explain(source, &head, &body);
        assert_eq!(code, Some(4), "{told}");
        assert!(told.contains(expected), "{expected} is not in\n{told}");
        assert!(!told.contains(NEW) && !told.contains("whsec_1"), "{told}");
    }
}

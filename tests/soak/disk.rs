//! A small disk for the data folder, so that it can be full: a tmpfs in a mount namespace of its own, which needs no
//! privileges and is gone with who holds it. Where the system does not let us have one there is none.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub struct Disk {
    /// Lives as long as its input is open, and the mount with it.
    holder: Child,
    at: PathBuf,
}

impl Disk {
    /// Mounts one of `mib` MiB at an empty folder, for processes that are run by [`Disk::runner`].
    pub fn mount(at: &Path, mib: u64) -> Option<Self> {
        let script = "mount -t tmpfs -o \"size=$1m\" tmpfs \"$0\" && echo mounted && exec cat";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(at).arg(mib.to_string());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut disk = Self { holder: spawned.ok()?, at: at.to_owned() };
        let mut said = String::new();
        BufReader::new(disk.holder.stdout.take()?).read_line(&mut said).ok()?;
        (said == "mounted\n").then_some(disk)
    }

    /// Words before a command that is to see the disk.
    pub fn runner(&self) -> Vec<String> {
        let holder = self.holder.id().to_string();
        ["nsenter", "--preserve-credentials", "--user", "--mount", "--target", &holder, "--"].map(str::to_owned).into()
    }

    fn ballast(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.at.strip_prefix("/").expect("an absolute path")).join("ballast")
    }

    /// Leaves no room on it.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.ballast()).expect("a file");
        for bytes in [1024 * 1024, 4096] {
            while file.write_all(&vec![0; bytes]).is_ok() {}
        }
    }

    pub fn free(&self) {
        let _ = std::fs::remove_file(self.ballast());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

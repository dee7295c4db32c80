use super::*;

fn target(mirror: &str, suite: &str, codename: &str, component: &str, entry: &str) -> String {
    format!(
        "MetaKey: {component}/binary-amd64/Packages\nCodename: {codename}\nOrigin: Debian\nComponent: {component}\n\
         Created-By: Packages\nRelease: {suite}\nRepo-URI: {mirror}\nSourcesentry: {entry}\nTarget-Of: deb\n"
    )
}

const MAIN: &str = "http://mirror.example/debian/";
const SECURITY: &str = "http://mirror.example/debian-security/";

#[test]
fn policies() {
    let answer = "qemu-system-x86:\n  Installed: (none)\n  Candidate: 1:7.2+dfsg-7+deb12u15\n  Version table:\n     \
                  1:7.2+dfsg-7+deb12u15 500\n        500 http://mirror.example/debian bookworm/main amd64 Packages\n\
                  gcc:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";
    let found = candidates(answer);
    assert_eq!(found.get(QEMU).map(String::as_str), Some("1:7.2+dfsg-7+deb12u15"));
    assert_eq!(found.len(), 1, "a package without a candidate is not there");
    assert!(!new_enough(&found));
    assert!(new_enough(&candidates(
        "qemu-system-x86:\n  Candidate: 1:10.0.2+ds-2\n"
    )));
    assert!(!new_enough(&candidates("")));
}

#[test]
fn codenames() {
    assert_eq!(
        codename("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(),
        Some("bookworm")
    );
    assert_eq!(codename("VERSION_CODENAME=\"noble\"").as_deref(), Some("noble"));
    assert_eq!(codename("VERSION_CODENAME=\n"), None);
    assert_eq!(codename("ID=arch\n"), None);
}

#[test]
fn the_private_sources_are_the_machines_own_and_backports() {
    let targets = [
        target(MAIN, "bookworm", "bookworm", "main", "a.sources:1"),
        target(MAIN, "bookworm", "bookworm", "contrib", "a.sources:1"),
        target(MAIN, "bookworm-updates", "bookworm-updates", "main", "a.sources:1"),
        target(
            SECURITY,
            "bookworm-security",
            "bookworm-security",
            "main",
            "a.sources:2",
        ),
        target("http://other.example/tool/", "stable", "tool", "main", "tool.list:1"),
        target("cdrom:[Debian]/", "bookworm", "bookworm", "main", "cd.list:1"),
    ]
    .join("\n");
    let text = private_sources(&targets, "bookworm", |entry| format!("Signed-By: /keys/{entry}\n")).unwrap();
    let expected = format!(
        "# Written by `cargo xtask setup`, which alone reads it.\n\n\
         Types: deb\nURIs: {SECURITY}\nSuites: bookworm-security\nComponents: main\nSigned-By: /keys/a.sources:2\n\n\
         Types: deb\nURIs: {MAIN}\nSuites: bookworm bookworm-backports bookworm-updates\nComponents: main contrib\n\
         Signed-By: /keys/a.sources:1\n"
    );
    // Sorted by mirror: `debian-security/` before `debian/`.
    assert_eq!(text, expected);
}

#[test]
fn a_release_by_its_suite_name_is_known_by_its_codename() {
    let text = private_sources(&target(MAIN, "stable", "trixie", "main", "x:1"), "trixie", |_| {
        String::new()
    })
    .unwrap();
    assert!(text.contains("Suites: stable trixie-backports\n"), "{text}");
}

#[test]
fn without_a_mirror_of_the_release_there_is_a_way_out() {
    let error = private_sources(&target(MAIN, "sid", "sid", "main", "x:1"), "bookworm", |_| {
        String::new()
    })
    .unwrap_err();
    assert!(error.to_string().contains("no mirror of bookworm") && error.to_string().contains("apt-get update"));
    assert!(private_sources("", "bookworm", |_| String::new()).is_err());
}

#[test]
fn trust_is_taken_over_from_sources_files() {
    let file = "# the archive\nTypes: deb\nURIs: x\nSigned-By: /keys/a.gpg\n\n\nTypes: deb\nURIs: y\nSigned-By:\n \
                -----BEGIN PGP\n .\n abc\nSuites: s\nTrusted: yes\n";
    let read = |_: &str| Some(file.to_owned());
    assert_eq!(source_options("/etc/a.sources:1", read), "Signed-By: /keys/a.gpg\n");
    assert_eq!(
        source_options("/etc/a.sources:2", read),
        "Signed-By:\n -----BEGIN PGP\n .\n abc\nTrusted: yes\n"
    );
    assert_eq!(source_options("/etc/a.sources:3", read), "");
}

#[test]
fn trust_is_taken_over_from_lists() {
    let file =
        "# comment\ndeb [arch=amd64 signed-by=/k/a.gpg,/k/b.gpg trusted=yes] http://x y main\ndeb http://x z main\n";
    let read = |_: &str| Some(file.to_owned());
    assert_eq!(
        source_options("/etc/a.list:2", read),
        "Signed-By: /k/a.gpg /k/b.gpg\nTrusted: yes\n"
    );
    assert_eq!(source_options("/etc/a.list:3", read), "");
    assert_eq!(source_options("/etc/a.list:9", read), "");
    assert_eq!(source_options("nonsense", read), "");
    assert_eq!(source_options("/gone.list:1", |_| None), "");
}

#[test]
fn commands_leave_the_machines_sources_alone() {
    let private = PrivateList {
        sources: "/t/doorpost.sources".into(),
        lists: "/t/lists".into(),
    };
    let line = install_command(Some(&private), Some("bookworm-backports"), &[QEMU]).join(" ");
    assert_eq!(
        line,
        "env DEBIAN_FRONTEND=noninteractive apt-get -o Dir::Etc::sourcelist=/t/doorpost.sources \
         -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=/t/lists -o Dir::Cache::pkgcache= \
         -o Dir::Cache::srcpkgcache= install --yes --no-install-recommends -t bookworm-backports qemu-system-x86"
    );
    let error = by_hand(&[&apt_get(None, &["update"])]).to_string();
    assert!(
        error.contains("\n  env DEBIAN_FRONTEND=noninteractive apt-get update\nthen run"),
        "{error}"
    );
}

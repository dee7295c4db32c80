//! The table of faults in `docs/faults.md` names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Rows that the table has at least.
const LEAST_ROWS: usize = 25;

struct Row {
    line: usize,
    fault: String,
    outcome: String,
    file: String,
    test: String,
}

/// The rows whose third cell is `` `FILE::TEST` ``; what else looks like a row is a head, or a mistake.
fn rows(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let Some(cells) = line.strip_prefix('|').and_then(|rest| rest.strip_suffix('|')) else {
            continue;
        };
        let cells: Vec<_> = cells.split('|').map(str::trim).collect();
        let [fault, outcome, named] = cells[..] else {
            return Err(format!("line {line_number}: {} cells", cells.len()));
        };
        if fault == "fault" || fault.starts_with('-') {
            continue;
        }
        let named = named.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        let Some((file, test)) = named.and_then(|named| named.split_once("::")) else {
            return Err(format!("line {line_number}: no `file::test`"));
        };
        rows.push(Row {
            line: line_number,
            fault: fault.into(),
            outcome: outcome.into(),
            file: file.into(),
            test: test.into(),
        });
    }
    Ok(rows)
}

/// Whether `source` has a function of that name, with `#[test]` among the lines right above it.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    lines.iter().enumerate().any(|(at, line)| {
        line.starts_with(&function)
            && lines[..at]
                .iter()
                .rev()
                .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
                .any(|line| *line == "#[test]")
    })
}

#[test]
fn every_test_of_the_table_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = rows(&fs::read_to_string(root.join("docs/faults.md")).unwrap()).unwrap();
    assert!(rows.len() >= LEAST_ROWS, "{} rows", rows.len());
    let mut faults = BTreeSet::new();
    for row in &rows {
        let place = format!("docs/faults.md:{}", row.line);
        assert!(
            faults.insert(&row.fault),
            "{place}: the fault \"{}\" stands there twice",
            row.fault
        );
        assert!(!row.outcome.is_empty(), "{place}: no outcome");
        let source =
            fs::read_to_string(root.join(&row.file)).unwrap_or_else(|error| panic!("{place}: {}: {error}", row.file));
        assert!(
            has_test(&source, &row.test),
            "{place}: {} has no test {}",
            row.file,
            row.test
        );
    }
}

#[test]
fn a_table_with_mistakes_is_found_out() {
    assert!(rows("| a | b |").is_err());
    assert!(rows("| a | b | c |").is_err());
    let found = rows("| fault | outcome | test |\n|---|---|---|\n| a | b | `f.rs::c` |").unwrap();
    assert_eq!((found.len(), found[0].line), (1, 3));
    let source = "#[test]\n/// Words.\nfn c() {}\nfn d() {}\n";
    assert!(has_test(source, "c"));
    assert!(!has_test(source, "d") && !has_test(source, "e"));
}

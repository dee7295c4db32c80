//! doorpost's own commands: setup, run, test, ci, bench.

fn main() {}

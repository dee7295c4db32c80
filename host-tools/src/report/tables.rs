//! doorpost's own part of the text: machine, devices, and where each interrupt went.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use workload::report::{Controller, Queue, Recovery, Report};

use crate::report::Run;
use crate::report::figures::{binary, plural, sum, time};

/// Writes machine, controllers, fan-out, CPUs, errors and notes.
pub fn write(run: &Run, out: &mut String) -> fmt::Result {
    let report = &run.report;
    writeln!(out)?;
    machine(run, out)?;
    for controller in &report.controllers {
        write_controller(controller, out)?;
    }
    fan_out(report, out)?;
    cpus(report, out)?;
    interrupts(run, out)?;
    errors(report, out)?;
    if !report.notes.is_empty() {
        writeln!(out, "\nNotes of the guest:")?;
        for note in &report.notes {
            writeln!(out, "  - {note}")?;
        }
    }
    Ok(())
}

fn machine(run: &Run, out: &mut String) -> fmt::Result {
    let machine = &run.report.machine;
    let hypervisor = if machine.hypervisor.is_empty() {
        "unnamed hypervisor"
    } else {
        &machine.hypervisor
    };
    writeln!(
        out,
        "Machine  : {} ({hypervisor}), {}, {}B, {}; run began {} after the guest's first instruction",
        machine.architecture,
        plural(machine.cpus.into(), "CPU"),
        binary(machine.memory_bytes),
        machine.interrupt_controller,
        time(machine.boot_ns)
    )?;
    let clock = &machine.clock;
    writeln!(
        out,
        "Clock    : {}, {:.3} MHz, {}, {}",
        clock.source,
        clock.hertz as f64 / 1e6,
        if clock.invariant {
            "constant rate"
        } else {
            "rate not promised to be constant"
        },
        if clock.monotonic {
            "monotonic across CPUs".to_string()
        } else {
            format!(
                "NOT monotonic across CPUs (steps back by up to {})",
                time(clock.worst_step_back_ns)
            )
        }
    )?;
    let Some(launcher) = &run.launcher else { return Ok(()) };
    let reason = launcher
        .accelerator_reason
        .as_ref()
        .map_or(String::new(), |reason| format!(" ({reason})"));
    writeln!(
        out,
        "Launcher : {} {}, {}{reason}; host kernel {}; {} from start to end",
        launcher.name,
        launcher.version,
        launcher.accelerator,
        launcher.host_kernel,
        time(launcher.wall_ns)
    )?;
    if launcher.accelerator == "tcg" {
        writeln!(out, "           under TCG: counts are exact, times are the emulator's")?;
    }
    let drives: Vec<String> = launcher
        .drives
        .iter()
        .map(|drive| {
            let read_only = if drive.read_only { ", read-only" } else { "" };
            format!("{} ({}B{read_only})", drive.drive, binary(drive.bytes))
        })
        .collect();
    writeln!(out, "Drives   : {}", drives.join(", "))
}

fn write_controller(controller: &Controller, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "{:<9}: {} {:04x}:{:04x} {} (serial {}, firmware {}), NVMe {}",
        controller.name,
        controller.address,
        controller.pci_id.0,
        controller.pci_id.1,
        controller.model.trim(),
        controller.serial.trim(),
        controller.firmware.trim(),
        controller.version
    )?;
    writeln!(
        out,
        "           {} of {} granted, {}, transfers up to {}B, doorbells {} bytes apart{}{}",
        controller.queues_granted,
        plural(controller.queues_wanted.into(), "queue pair"),
        plural(controller.vectors.into(), "MSI-X vector"),
        binary(controller.max_transfer_bytes),
        controller.doorbell_stride,
        if controller.shadow_doorbells {
            " and in memory"
        } else {
            ""
        },
        if controller.write_cache {
            ", volatile write cache"
        } else {
            ""
        },
    )?;
    for namespace in &controller.namespaces {
        let bytes = namespace.blocks.saturating_mul(namespace.block_size.into());
        let read_only = if namespace.read_only { ", read-only" } else { "" };
        let refused = namespace
            .refused
            .as_ref()
            .map_or(String::new(), |why| format!(", not used: {why}"));
        writeln!(
            out,
            "           {}: {} blocks of {} bytes, {}B{read_only}{refused}",
            namespace.name,
            namespace.blocks,
            namespace.block_size,
            binary(bytes)
        )?;
    }
    condition(controller, out)
}

/// What a controller went through, and how it is; nothing where all is as it should be.
fn condition(controller: &Controller, out: &mut String) -> fmt::Result {
    let Recovery {
        timeouts,
        aborts,
        resets,
        reissued,
    } = controller.recovery;
    if timeouts.max(aborts).max(resets) > 0 {
        writeln!(
            out,
            "           {} too late, {}, {}, {} issued again",
            plural(timeouts, "command"),
            plural(aborts, "abort"),
            plural(resets, "controller reset"),
            plural(reissued, "command"),
        )?;
    }
    for event in &controller.events {
        writeln!(out, "           event: {event}")?;
    }
    if let Some(health) = &controller.health {
        let warnings = if health.warnings.is_empty() {
            "no warning".to_string()
        } else {
            health.warnings.join(", ")
        };
        writeln!(
            out,
            "           health: {warnings}, {} °C, {}% used, {}% spare, {}, {}",
            i32::from(health.temperature_k) - 273,
            health.used_percent,
            health.spare_percent,
            plural(health.media_errors, "media error"),
            plural(health.unsafe_shutdowns, "unsafe shutdown"),
        )?;
    }
    for entry in &controller.error_log {
        writeln!(
            out,
            "           error log {}: {} (queue {}, namespace {}, LBA {})",
            entry.number, entry.status, entry.queue, entry.namespace, entry.lba
        )?;
    }
    Ok(())
}

/// A table without rules; the first `left` columns are text.
fn table(header: &[&str], left: usize, rows: Vec<Vec<String>>, out: &mut String) -> fmt::Result {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for line in table.to_string().lines() {
        writeln!(out, " {}", line.trim_end())?;
    }
    Ok(())
}

fn fan_out(report: &Report, out: &mut String) -> fmt::Result {
    if report.queues.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nFan-out: each I/O queue pair, and where its interrupts go")?;
    let header = [
        "controller",
        "queue",
        "cpu",
        "cpu id",
        "msi-x",
        "vector",
        "entries",
        "jobs",
        "interrupts",
        "spurious",
        "missed",
        "submitted",
        "completed",
        "sq bells",
        "cq bells",
    ];
    let number = |value: Option<u32>| value.map_or("-".to_string(), |value| value.to_string());
    let mut vectors: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for queue in &report.queues {
        if let Some(vector) = queue.vector {
            *vectors.entry((queue.cpu, vector)).or_default() += 1;
        }
    }
    let is_shared = |queue: &Queue| {
        let vector = queue.vector.and_then(|vector| vectors.get(&(queue.cpu, vector)));
        vector.is_some_and(|rows| *rows > 1)
    };
    let rows = report.queues.iter().map(|queue| {
        let jobs: Vec<String> = queue.jobs.iter().map(u32::to_string).collect();
        vec![
            queue.controller.clone(),
            queue.id.to_string(),
            queue.cpu.to_string(),
            queue.cpu_hardware_id.to_string(),
            number(queue.msix_entry),
            number(queue.vector) + if is_shared(queue) { "*" } else { "" },
            queue.entries.to_string(),
            if jobs.is_empty() {
                "-".to_string()
            } else {
                jobs.join(",")
            },
            queue.interrupts.to_string(),
            queue.spurious.to_string(),
            queue.missed.to_string(),
            queue.submissions.to_string(),
            queue.completions.to_string(),
            queue.sq_doorbells.to_string(),
            queue.cq_doorbells.to_string(),
        ]
    });
    table(&header, 1, rows.collect(), out)?;
    if report.queues.iter().any(is_shared) {
        writeln!(out, "  * vector shared: its interrupts stand in each row")?;
    }
    Ok(())
}

fn cpus(report: &Report, out: &mut String) -> fmt::Result {
    if report.cpus.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nCPUs")?;
    let header = [
        "cpu",
        "cpu id",
        "interrupts",
        "wrong cpu",
        "unexpected",
        "EOIs",
        "ticks",
        "halts",
        "empty polls",
    ];
    let rows = report.cpus.iter().map(|cpu| {
        let counts = [
            cpu.interrupts,
            cpu.wrong_cpu,
            cpu.unexpected,
            cpu.eois,
            cpu.ticks,
            cpu.halts,
            cpu.empty_polls,
        ];
        let ids = [u64::from(cpu.cpu), u64::from(cpu.hardware_id)];
        ids.iter().chain(&counts).map(u64::to_string).collect()
    });
    table(&header, 0, rows.collect(), out)?;
    waiting(report, out)
}

/// What each CPU did with its time, and what it saw of pending interrupts.
fn waiting(report: &Report, out: &mut String) -> fmt::Result {
    let window = report.jobs.iter().map(|job| job.runtime_ns).max().unwrap_or(0);
    if window == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "\nWaiting: shares of the measured time, and interrupts that were found pending"
    )?;
    let header = [
        "cpu",
        "halted",
        "polling",
        "working",
        "pending hits",
        "late",
        "ns per look",
        "polls for ns",
    ];
    let rows = report.cpus.iter().map(|cpu| {
        let working = window.saturating_sub(cpu.halted_ns).saturating_sub(cpu.polling_ns);
        let share = |ns: u64| format!("{:.1}%", ns as f64 * 100.0 / window as f64);
        let mut row = vec![cpu.cpu.to_string()];
        row.extend([cpu.halted_ns, cpu.polling_ns, working].map(share));
        let counts = [
            cpu.pending_hits,
            cpu.pending_late,
            cpu.pending_look_ns,
            cpu.poll_length_ns,
        ];
        row.extend(counts.map(|count| count.to_string()));
        row
    });
    table(&header, 0, rows.collect(), out)
}

fn interrupts(run: &Run, out: &mut String) -> fmt::Result {
    let totals = run.totals();
    let report = &run.report;
    writeln!(out)?;
    if let Some(ratio) = totals.interrupts_per_io {
        let ios = totals.reads.saturating_add(totals.writes);
        writeln!(
            out,
            "Interrupts: {ratio:.3} per I/O ({} in {ios} I/Os)",
            totals.interrupts
        )?;
    }
    let wrong = sum(report.cpus.iter().map(|cpu| cpu.wrong_cpu));
    let unexpected = sum(report.cpus.iter().map(|cpu| cpu.unexpected));
    let missed = sum(report.queues.iter().map(|queue| queue.missed));
    for (count, what) in [
        (wrong, "on a CPU that the vector was not routed to"),
        (unexpected, "that nobody had asked for"),
    ] {
        if count > 0 {
            writeln!(out, "            {} {what}", plural(count, "interrupt"))?;
        }
    }
    if missed > 0 {
        let what = "found by the watchdog though no interrupt had come";
        writeln!(out, "            {} {what}", plural(missed, "completion"))?;
    }
    let mut modes: Vec<String> = Vec::new();
    for job in &report.jobs {
        let asked = report.arguments.run.wait;
        let mode = if job.wait == asked {
            job.wait.to_string()
        } else {
            format!("{} ({asked} was asked for)", job.wait)
        };
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    if !modes.is_empty() {
        writeln!(out, "Wait mode : {}", modes.join(", "))?;
    }
    Ok(())
}

fn errors(report: &Report, out: &mut String) -> fmt::Result {
    let errors: Vec<_> = report
        .jobs
        .iter()
        .flat_map(|job| job.errors.iter().map(|error| (job.index, error)))
        .collect();
    if !errors.is_empty() {
        writeln!(out, "\nFailed commands")?;
        let rows = errors.iter().map(|(job, error)| {
            let (sct, sc) = (error.code >> 8, error.code & 0xff);
            vec![
                error.namespace.clone(),
                error.status.clone(),
                format!("sct {sct:#x} sc {sc:#04x}"),
                job.to_string(),
                error.count.to_string(),
            ]
        });
        table(&["namespace", "status", "code", "job", "count"], 3, rows.collect(), out)?;
    }
    let verified = sum(report.jobs.iter().map(|job| job.verified_blocks));
    if verified > 0 {
        let differed = sum(report.jobs.iter().map(|job| job.miscompares));
        writeln!(out, "Verified  : {}, {differed} differed", plural(verified, "block"))?;
    }
    for job in &report.jobs {
        if let Some(first) = &job.first_miscompare {
            writeln!(
                out,
                "            job {}: first in {} at block {} (byte {}): {:#018x} expected, {:#018x} found",
                job.index, first.namespace, first.lba, first.offset, first.expected, first.found
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn shared_vectors_are_marked() {
        let mut report = sample::report();
        let (first, second) = (report.queues[0].clone(), report.queues[1].clone());
        let text = |report: &Report| {
            let mut out = String::new();
            fan_out(report, &mut out).unwrap();
            out
        };
        let note = "  * vector shared: its interrupts stand in each row\n";
        // A vector is one of a CPU: the same number elsewhere is another. None at all is shared by nobody.
        let elsewhere = Queue {
            cpu: 1,
            ..first.clone()
        };
        report.queues = vec![first.clone(), elsewhere.clone(), second.clone(), second.clone()];
        assert!(!text(&report).contains('*'), "{}", text(&report));
        report.queues.push(Queue { id: 2, ..first });
        let text = text(&report);
        let marked = text.lines().filter(|line| line.contains(" 65*  "));
        assert_eq!(marked.count(), 2, "{text}");
        assert!(text.lines().any(|line| line.contains(" 65   ")), "{text}");
        assert!(text.ends_with(note), "{text}");
    }
}

//! The report in a person's words, for whoever watches the console. The frame with all of it follows.

use workload::report::{Direction, Report};

/// Prints a few lines for each job and queue.
pub fn print(report: &Report) {
    for job in &report.jobs {
        let name = report.spec(job).map_or("", |spec| &spec.name);
        for (what, direction) in [("read", &job.read), ("write", &job.write)] {
            if direction.ios > 0 {
                let iops = u128::from(direction.ios) * 1_000_000_000 / u128::from(job.runtime_ns.max(1));
                println!(
                    "{name} {} on CPU {}: {what} {} I/Os in {} ms, {iops} IOPS, clat mean {} ns, p50 {} ns, p99 {} ns",
                    job.index,
                    job.cpu,
                    direction.ios,
                    job.runtime_ns / 1_000_000,
                    direction.clat.summary.sum / direction.clat.summary.count.max(1),
                    percentile(direction, 500_000),
                    percentile(direction, 990_000),
                );
            }
        }
        for error in &job.errors {
            println!(
                "{name} {}: {} on {}, {} times",
                job.index, error.status, error.namespace, error.count
            );
        }
        if let Some(wrong) = &job.first_miscompare {
            println!(
                "{name} {}: {} blocks differ, the first is LBA {} of {}",
                job.index, job.miscompares, wrong.lba, wrong.namespace
            );
        }
    }
    for queue in &report.queues {
        println!(
            "{} queue {} on CPU {}: {} completions, {} interrupts, {} spurious, {} missed, {} + {} doorbells",
            queue.controller,
            queue.id,
            queue.cpu,
            queue.completions,
            queue.interrupts,
            queue.spurious,
            queue.missed,
            queue.sq_doorbells,
            queue.cq_doorbells
        );
    }
    for note in &report.notes {
        println!("note: {note}");
    }
}

fn percentile(direction: &Direction, parts_per_million: u32) -> u64 {
    direction.clat.percentile(parts_per_million).unwrap_or(0)
}
